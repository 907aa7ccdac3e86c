"""Choice of the faults of a run: those that are asked for, as far as this machine can."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from experiments.chaos.faults.filling import DiskError, mounted
from experiments.chaos.schedule import CLOCK, DATABASE, DISK, FAULTS

JUMPS = 0.6
"""Jumps of clocks for each kill, where nothing else is asked for."""


def chosen(only: str, without: str, folder: Path, say: Callable[[str], None]) -> tuple[str, ...]:
    """Return the faults to be made. One that this machine cannot make is left out, and `say` tells
    why; ValueError if it was asked for by name, or has an unknown name.
    """
    wanted, unwanted = (
        tuple(word for word in words.split(",") if word) for words in (only, without)
    )
    for name in (*wanted, *unwanted):
        if name not in FAULTS:
            raise ValueError(f"there is no part {name}; choose from {', '.join(FAULTS)}")
    parts = [part for part in wanted or FAULTS if part not in unwanted]
    for part in list(parts):
        if reason := _hindrance(part, folder):
            if part in wanted:
                raise ValueError(f"{part}: {reason}")
            say(f"NOT done here: {part}: {reason}")
            parts.remove(part)
    return tuple(parts)


def jumps_of(asked: int | None, kills: int, parts: tuple[str, ...]) -> int:
    """Return the number of jumps: as asked, else in proportion to the kills."""
    if asked is not None:
        return asked
    return round(JUMPS * kills) if CLOCK in parts else 0


def _hindrance(part: str, folder: Path) -> str:
    """Return why this machine cannot make the fault; "" if it can."""
    if part == CLOCK and not shutil.which("cc"):
        return "clocks need a C compiler (cc)"
    if part == DATABASE and "DATABASE_URL" not in os.environ:
        return "only PostgreSQL is killed and restarted (DATABASE=postgres)"
    if part == DISK:
        try:
            with mounted(folder / "disks" / "trial.ext4", folder / "disks" / "trial", 16):
                return ""
        except DiskError as error:
            return f"no small ext4 can be mounted: {error}"
    return ""
