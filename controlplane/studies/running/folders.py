"""Working folders of simulations on their worker's machine, for the server's user alone.

It holds what an interrupted study needs to go on. What a study comes to goes into the database, so
that every web process has it.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings

from controlplane.studies.lifecycle import ACTIVE
from controlplane.studies.models import Simulation, SimulationFile

FILES = ("results.json", "jobs.csv", "report.html", "timings.json")
LARGEST = 256 * 1024 * 1024
LEVEL = 6


class TooLargeError(Exception):
    """A result is larger than the database should hold."""


def folder_of(simulation: Simulation) -> Path:
    """The simulation's folder, made if need be, with its study in it."""
    root = Path(settings.SIMULATIONS_DIR)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = root / str(simulation.pk)
    folder.mkdir(mode=0o700, exist_ok=True)
    _write(folder / "study.json", simulation.document)
    return folder


def remove_folder(simulation: Simulation) -> None:
    """Remove the simulation's folder, if this machine has one."""
    shutil.rmtree(Path(settings.SIMULATIONS_DIR) / str(simulation.pk), ignore_errors=True)


def sweep() -> int:
    """Remove the folders of simulations that are over or deleted; how many there were."""
    root = Path(settings.SIMULATIONS_DIR)
    there = {
        pk: path for path in (root.iterdir() if root.is_dir() else ()) if (pk := _uuid(path.name))
    }
    active = set(
        Simulation.objects.filter(pk__in=there, state__in=ACTIVE).values_list("pk", flat=True)
    )
    over = [path for pk, path in there.items() if pk not in active]
    for path in over:
        shutil.rmtree(path, ignore_errors=True)
    return len(over)


def packed_files(simulation: Simulation, folder: Path) -> list[SimulationFile]:
    """The study's files as rows to write. TooLargeError names one that is too large."""
    found = []
    for name in FILES:
        path = folder / name
        if not path.exists():
            continue
        if (size := path.stat().st_size) > LARGEST:
            raise TooLargeError(
                f"{name} has {size:,} bytes, more than {LARGEST:,}: simulate fewer jobs or seeds at"
                " once"
            )
        found.append(
            SimulationFile(
                simulation=simulation,
                name=name,
                size=size,
                data=zlib.compress(path.read_bytes(), LEVEL),
            )
        )
    return found


def read_file(simulation: Simulation, name: str) -> bytes | None:
    """A file that the simulation came to; None if it has none of that name."""
    data = (
        SimulationFile.objects.filter(simulation=simulation, name=name)
        .values_list("data", flat=True)
        .first()
    )
    return None if data is None else zlib.decompress(data)


def _write(path: Path, document: Mapping[str, Any]) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(document))
    beside.replace(path)


def _uuid(name: str) -> UUID | None:
    try:
        return UUID(name)
    except ValueError:
        return None
