"""Batch scripts in containers without an Engine: interpreters, output files, programs."""

import ast
from pathlib import Path

import pytest

from loadmaster.agent.runtimes.docker.plan import launch_script
from loadmaster.agent.runtimes.docker.scripts import (
    _modules,
    interpreters,
    outputs_in_container,
    outputs_on_host,
)
from loadmaster.agent.runtimes.mounts import Mount
from tests.builders_agent import a_spec

NEWER_NAMES = ("StrEnum", "UTC", "Self", "assert_never", "process_group", "tomllib")
"""Names that Python 3.10 has not."""


@pytest.mark.parametrize(
    ("line", "name", "places"),
    [
        ("#!/bin/bash", "/bin/bash", ["/bin/bash"]),
        ("#! /bin/bash -l", "/bin/bash", ["/bin/bash"]),
        ("#!/usr/bin/env bash", "bash", ["/opt/bin/bash", "/bin/bash"]),
        ("#!/usr/bin/env -S A=1 bash -e", "bash", ["/opt/bin/bash", "/bin/bash"]),
        ("#!/usr/bin/env", "/usr/bin/env", ["/usr/bin/env"]),
        ("#!", "/bin/sh", ["/bin/sh"]),
    ],
)
def test_the_interpreter_of_a_script_is_sought_in_the_image(
    line: str, name: str, places: list[str]
) -> None:
    assert interpreters(f"{line}\ntrue\n", "/opt/bin:/bin") == (name, places)


@pytest.mark.parametrize(
    ("folder", "output", "error_output", "expected"),
    [
        ("", "/data/o", "", {"stdout": "/data/o"}),
        ("/data", "o", "../e", {"stdout": "/data/o", "stderr": "/e"}),
        ("/data", "o", "/data/./o", {"stdout": "/data/o"}),
        ("/data", "", "", {}),
    ],
)
def test_output_files_are_paths_of_the_container(
    folder: str, output: str, error_output: str, expected: dict[str, str]
) -> None:
    spec = a_spec(folder=folder, output=output, error_output=error_output)
    assert outputs_in_container(spec) == expected


def test_an_output_file_lies_in_the_inner_of_two_mounts(tmp_path: Path) -> None:
    outer = Mount(str(tmp_path), "/data", writable=True)
    inner = Mount(str(tmp_path / "in"), "/data/in", writable=True)
    outputs = {"stdout": "/data/o", "stderr": "/data/in/e"}
    on_host = {"stdout": str(tmp_path / "o"), "stderr": str(tmp_path / "in" / "e")}
    assert outputs_on_host(outputs, [outer, inner]) == on_host


@pytest.mark.parametrize("path", ["/o", "/read/o", "/database/o"])
def test_an_output_file_outside_of_writable_mounts_is_refused(tmp_path: Path, path: str) -> None:
    mounts = [Mount(str(tmp_path), "/data", writable=True), Mount(str(tmp_path), "/read")]
    with pytest.raises(ValueError, match="in no folder that the job may write"):
        outputs_on_host({"stdout": path}, mounts)


def test_an_output_file_behind_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(ValueError, match="behind a link"):
        outputs_on_host({"stdout": "/data/link/o"}, [Mount(str(tmp_path), "/data", writable=True)])


def test_paths_of_output_files_are_quoted_for_the_shell() -> None:
    assert "exec 1>>'/data/$(x)'\nexec 2>&1\n" in launch_script(["a"], {}, {"stdout": "/data/$(x)"})


@pytest.mark.parametrize("path", list(_modules()), ids=lambda path: path.name)
def test_programs_in_images_run_by_python_of_version_3_10(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
    keywords = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    assert not (names | keywords) & set(NEWER_NAMES)
