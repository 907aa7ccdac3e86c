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
LARGEST = 256 * 1024 * 1024
LEVEL = 6
PACKED_AT_ONCE, UNPACKED_AT_ONCE = 4 * 1024 * 1024, 64 * 1024
"""Bytes of a packed file that are read by one query (SQLite reads all for each), and unpacked."""


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
    there = {path.name: path for path in (root.iterdir() if root.is_dir() else ())}
    ids = [name for name in there if _is_uuid(name)]
    active = Simulation.objects.filter(pk__in=ids, state__in=ACTIVE).values_list("pk", flat=True)
    over = set(ids) - set(map(str, active))
    for name in over:
        shutil.rmtree(there[name], ignore_errors=True)
    return len(over)


def packed_files(simulation: Simulation, folder: Path) -> list[SimulationFile]:
    """Files of the study as rows to write. TooLargeError names one that is too large."""
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
        data = zlib.compress(path.read_bytes(), LEVEL)
        found.append(SimulationFile(simulation=simulation, name=name, size=size, data=data))
    return found


def read_file(simulation: Simulation, name: str) -> bytes | None:
    """A file that the simulation came to; None if it has none of that name."""
    found = stored_file(simulation, name)
    return None if found is None else b"".join(found[1])


def stored_file(simulation: Simulation, name: str) -> tuple[int, Iterator[bytes]] | None:
    """Bytes of such a file, and its pieces, each read when it is wanted: a slow download holds
    one, and some of the packed bytes.
    """
    files = SimulationFile.objects.filter(simulation=simulation, name=name)
    size = files.values_list("size", flat=True).first()
    return None if size is None else (size, _unpacked(files))


def _unpacked(files: QuerySet[SimulationFile]) -> Iterator[bytes]:
    """Pieces of one file. Raises FileNotFoundError if it is deleted meanwhile."""
    unpacking, at = zlib.decompressobj(), 1
    while not unpacking.eof:
        packed = unpacking.unconsumed_tail
        if not packed:
            read = Substr("data", at, PACKED_AT_ONCE, output_field=BinaryField())
            packed = bytes(files.values_list(read, flat=True).first() or b"")
            at += len(packed)
        piece = unpacking.decompress(packed, UNPACKED_AT_ONCE)
        if not piece and not packed:
            raise FileNotFoundError("the simulation was deleted during the download")
        yield piece


def _is_uuid(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False
