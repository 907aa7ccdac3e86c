"""A small file system that can be filled: ext4 in a loop-mounted image, and where that is not
allowed a tmpfs, which the test then says on the terminal.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from experiments.chaos.faults.filling import DiskError, SmallDisk, mounted

__all__ = ["SmallDisk", "small_disk"]


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a file system of that size below `place` (root only)."""
    folder = place / "disk"
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(mounted(place / "image", folder, megabytes))
        except DiskError as error:
            said = f"no ext4 can be mounted here, so a tmpfs is tested: {error}"
            print(said, file=sys.__stderr__)
            disk = stack.enter_context(_tmpfs(folder, megabytes))
        yield disk


@contextmanager
def _tmpfs(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    size = f"size={megabytes}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "loadmaster-test", folder], check=True)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
