"""Digests of everything that decides a run's result, to reuse finished runs."""

import json
import re
from collections.abc import Iterable
from functools import cache
from hashlib import file_digest, sha256
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_CODE = (
    "policies",
    "controlplane/simulation",
    "controlplane/loop/rounds.py",
    "controlplane/loop/changes.py",
    "clusters/energy.py",
    "profiling/speeds.py",
    "profiling/pairs/completion.py",
    "profiling/pairs/fingerprints.py",
    "profiling/pairs/estimates.py",
    "profiling/pairs/study.py",
)
"""Folders and files whose code decides and simulates."""

_LONGEST_PATH = 4096
"""Characters of a text that may be a path."""


def digest(value: object) -> str:
    """Return the SHA-256 of plain JSON data, in hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def files_in(value: object) -> Iterable[Path]:
    """Yield the files that plain data name; their content enters the digest."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from files_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from files_in(inner)
    elif isinstance(value, str) and len(value) < _LONGEST_PATH and Path(value).is_file():
        yield Path(value)


@cache
def digest_of_code() -> str:
    """Return the SHA-256 of all code that decides and simulates."""
    files: list[Path] = []
    for name in _CODE:
        place = _ROOT / name
        if place.suffix == ".py":
            files.append(place)
        else:
            files.extend(place.rglob("*.py"))
    return digest([[str(file.relative_to(_ROOT)), digest_of_file(file)] for file in sorted(files)])


def slug(label: str) -> str:
    """Convert a label to a part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:40] or "policy"
