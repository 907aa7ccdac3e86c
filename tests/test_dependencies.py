"""Every library the project names is pinned, and its reason is written down."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def plain(name: str) -> str:
    """The name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(word for extra in project["optional-dependencies"].values() for word in extra),
    ]
    return {plain(re.split(r"[\[<>=;\s]", word)[0]) for word in asked} - {"loadmaster"}


def test_every_library_has_an_exact_version() -> None:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    pinned = {
        plain(line.partition("==")[0])
        for line in lines
        if re.fullmatch(r"[\w.-]+==[\w.]+( ;.*)?", line)
    }
    assert len(pinned) == len(lines)
    assert wanted() - pinned == set()


def test_pytorch_brings_no_libraries_for_gpus() -> None:
    """Tests want the build for CPUs; the other one would bring gigabytes of NVIDIA's."""
    pinned = {
        plain(line.partition("==")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    assert "torch" in pinned
    assert {name for name in pinned if name.startswith(("nvidia", "cuda", "triton"))} == {
        "nvidia-ml-py"
    }


def test_every_library_has_its_reason() -> None:
    """Types of libraries that have none of their own are named as "the stubs"."""
    words = {
        plain(word)
        for word in re.findall(r"[\w.-]+", (ROOT / "docs" / "dependencies.md").read_text())
    }
    stubs = {
        name
        for name in wanted()
        if "stubs" in name or name.startswith("types-") or name.endswith("-types")
    }
    assert "stubs" in words
    assert wanted() - stubs - words == set()
