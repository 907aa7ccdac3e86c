"""A mutant is tried in a copy of the tree: it is killed if a test fails, else it survives."""

import subprocess
from pathlib import Path

import psutil
import pytest

from experiments.mutants.kept import Mutant
from experiments.mutants.trial import Tree

FILES = {
    "sums.py": "def plus(a, b):\n    return a + b\n",
    "test_sums.py": (
        "import subprocess, sys, pytest\n"
        "from sums import plus\n"
        "def test_plus(): assert plus(2, 3) == 5\n"
        "def test_zero(): assert plus(0, 0) == 0\n"
        "@pytest.mark.slow\n"
        "def test_slow(): assert plus(2, 3) == 5\n"
        "def test_stray():\n"
        "    subprocess.Popen(['sleep', '60'])\n"
        "    assert plus(2, 3) == 5\n"
    ),
    "pytest.ini": "[pytest]\nmarkers = slow: leave it out\n",
    ".gitignore": "ignored\n",
    "ignored": "",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with a function and its tests."""
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    root = tmp_path / "tree"
    root.mkdir()
    for name, text in FILES.items():
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def a_mutant(test: str) -> Mutant:
    return Mutant("M1", "It adds.", "sums.py", "a + b", "a - b", (f"test_sums.py::{test}",))


def test_a_mutant_is_killed_by_a_test_that_fails_and_leaves_nothing_mutated(
    root: Path, tmp_path: Path
) -> None:
    tree = Tree.copy(root, tmp_path / "copy", "not slow")
    assert not (tree.folder / "ignored").exists()
    assert tree.survives(a_mutant("test_zero")) == "SURVIVED"
    assert tree.survives(a_mutant("test_plus")) == ""
    assert tree.survives(a_mutant("test_zero")) == "SURVIVED"
    for folder in (root, tree.folder):
        assert (folder / "sums.py").read_text() == FILES["sums.py"]


def test_a_test_outside_the_set_kills_nothing(root: Path, tmp_path: Path) -> None:
    tree = Tree.copy(root, tmp_path / "copy", "not slow")
    assert "not in the set" in tree.survives(a_mutant("test_slow"))
    assert "pytest ended with 4" in tree.survives(a_mutant("test_none"))


def test_tests_that_cannot_begin_kill_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree.copy(root, tmp_path / "copy", "")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "no.such.settings")
    assert "pytest ended with 1" in tree.survives(a_mutant("test_plus"))


def test_what_a_mutant_left_running_is_ended(root: Path, tmp_path: Path) -> None:
    tree = Tree.copy(root, tmp_path / "copy", "")
    assert tree.survives(a_mutant("test_stray")) == ""
    left = []
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"] == str(tree.folder):
            left.append(process)
    psutil.wait_procs(left, timeout=10)
    assert not [process for process in left if process.is_running()]
