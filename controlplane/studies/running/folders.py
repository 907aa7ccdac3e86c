"""Working folders of simulations on their worker's machine, for the server's user alone.

They hold what an interrupted study needs; results go into the database for every web process.
"""

import json
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.db.models import BinaryField, QuerySet
from django.db.models.functions import Substr

from controlplane.studies.lifecycle import ACTIVE
from controlplane.studies.models import Simulation, SimulationFile

FILES = ("results.json", "jobs.csv", "report.html", "timings.json")
"""Results of a study that are stored."""

LARGEST = 256 * 1024 * 1024
"""Most bytes of a result."""

LEVEL = 6
"""Level of compression by zlib."""

PACKED_AT_ONCE = 4 * 1024 * 1024
"""Bytes of a packed file that one query reads; SQLite reads the whole file for each."""

UNPACKED_AT_ONCE = 64 * 1024
"""Most bytes of a piece."""


class TooLargeError(Exception):
    """Result that is too large for the database."""


def folder_of(simulation: Simulation) -> Path:
    """Create the simulation's folder with its study if missing, and return it."""
    root = Path(settings.SIMULATIONS_DIR)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = root / str(simulation.pk)
    folder.mkdir(mode=0o700, exist_ok=True)
    part = folder / "study.new"
    part.write_text(json.dumps(simulation.document))
    part.replace(folder / "study.json")
    return folder


def remove_folder(simulation: Simulation) -> None:
    """Remove the simulation's folder, if this machine has one."""
    shutil.rmtree(Path(settings.SIMULATIONS_DIR) / str(simulation.pk), ignore_errors=True)


def sweep() -> int:
    """Remove the folders of ended or deleted simulations; return their number."""
    root = Path(settings.SIMULATIONS_DIR)
    if not root.is_dir():
        return 0
    folders = {path.name: path for path in root.iterdir() if _is_uuid(path.name)}
    active = Simulation.objects.filter(pk__in=list(folders), state__in=ACTIVE)
    active_ids = {str(pk) for pk in active.values_list("pk", flat=True)}
    over = [path for name, path in folders.items() if name not in active_ids]
    for path in over:
        shutil.rmtree(path, ignore_errors=True)
    return len(over)


def packed_files(simulation: Simulation, folder: Path) -> list[SimulationFile]:
    """Files of the study as rows to write. TooLargeError names one that is too large."""
    files = []
    for name in FILES:
        path = folder / name
        if not path.exists():
            continue
        size = path.stat().st_size
        if size > LARGEST:
            raise TooLargeError(
                f"{name} has {size:,} bytes, more than {LARGEST:,}: simulate fewer jobs or seeds at"
                " once"
            )
        data = zlib.compress(path.read_bytes(), LEVEL)
        files.append(SimulationFile(simulation=simulation, name=name, size=size, data=data))
    return files


def read_file(simulation: Simulation, name: str) -> bytes | None:
    """Content of one of the simulation's files; None if it has none of that name."""
    stored = stored_file(simulation, name)
    if stored is None:
        return None
    _, pieces = stored
    return b"".join(pieces)


def stored_file(simulation: Simulation, name: str) -> tuple[int, Iterator[bytes]] | None:
    """(bytes, pieces) of one of the simulation's files; None if it has none of that name.

    Each piece is read when it is wanted: a slow download holds one, and some of the packed bytes.
    """
    files = SimulationFile.objects.filter(simulation=simulation, name=name)
    size = files.values_list("size", flat=True).first()
    return None if size is None else (size, _unpacked(files))


def _unpacked(files: QuerySet[SimulationFile]) -> Iterator[bytes]:
    """Pieces of one file. Raises FileNotFoundError if it is deleted meanwhile."""
    unpacker = zlib.decompressobj()
    position = 1  # of the next packed byte, as SQL counts
    while not unpacker.eof:
        packed = unpacker.unconsumed_tail
        if not packed:
            part = Substr("data", position, PACKED_AT_ONCE, output_field=BinaryField())
            packed = bytes(files.values_list(part, flat=True).first() or b"")
            position += len(packed)
        piece = unpacker.decompress(packed, UNPACKED_AT_ONCE)
        if not piece and not packed:
            raise FileNotFoundError("the simulation was deleted during the download")
        yield piece


def _is_uuid(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False
