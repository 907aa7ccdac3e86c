"""Trials of mutants in a temporary copy of the tree; the working tree is only read."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from experiments.mutants.kept import Mutant

LONGEST_S = 900.0
"""Longest time of a run of tests; one that hangs is no less noticed than one that fails."""

FAILED, NO_TESTS = 1, 5
"""Exit codes of pytest; Python itself ends with 1 too where pytest cannot begin."""


WITHOUT = ("-p", "no:cacheprovider", "--no-migrations", "--timeout", "60")
"""Migrations would take two thirds of the time. Tests that hang end after a minute."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Copy of the tree in `folder`, where the tests that `marks` selects may run."""

    folder: Path
    marks: str

    @classmethod
    def copy(cls, root: Path, folder: Path, marks: str) -> "Tree":
        """Copy what git knows, or would take, of the tree at `root`."""
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (source := root / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, folder / name)
        return cls(folder, marks)

    def survives(self, mutant: Mutant) -> str:
        """Empty if a test of the mutant notices it; else what happened instead."""
        path = self.folder / mutant.file
        before = path.read_bytes()
        try:
            _write(path, mutant.change(self.folder).encode())
            code, said = self.test(mutant.killed_by, "-x", "-n", "0")
        finally:
            _write(path, before)
        if code == FAILED and re.search(r"\b\d+ failed\b", said):
            return ""
        if code == NO_TESTS:
            return "its tests are not in the set of tests that runs"
        return "SURVIVED" if code == 0 else f"pytest ended with {code}:\n{said}"

    def test(self, tests: Iterable[str], *options: str) -> tuple[int, str]:
        """Run these tests; exit code and output. What they leave running is ended."""
        command = [sys.executable, "-m", "pytest", "-q", *WITHOUT, "-m", self.marks]
        command += [f"--basetemp={self.folder / 't'}", *options, *tests]
        paths = {"PYTHONPATH": str(self.folder), "NUMBA_CACHE_DIR": str(self.folder / "kernels")}
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env={**os.environ, **paths},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LONGEST_S,
            )
        except subprocess.TimeoutExpired:
            return FAILED, "1 failed: the tests hang"
        finally:
            _end_processes(str(self.folder))
        return done.returncode, done.stdout


def _write(path: Path, content: bytes) -> None:
    """Replace a source file; compiled code, told apart by size and second, is removed."""
    path.write_bytes(content)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def _end_processes(folder: str) -> None:
    """End what works in the folder: a mutated guard may not end by itself."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd().startswith(folder) or folder in " ".join(process.cmdline()):
                process.send_signal(signal.SIGKILL)


def named(found: Sequence[Mutant]) -> list[str]:
    """Return the tests of these mutants, each once."""
    return list(dict.fromkeys(test for mutant in found for test in mutant.killed_by))
