"""Results in files, one for each simulation, so that a stopped run goes on where it was."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, TypeVar


class InFile(Protocol):
    """Something to compute whose result has a file."""

    @property
    def file(self) -> str:
        """Its name: equal for what has equal results."""
        ...


Item = TypeVar("Item", bound=InFile)


def each(
    items: Sequence[Item],
    compute: Callable[[Item], Mapping[str, Any]],
    folder: Path,
    processes: int,
) -> Iterator[Path]:
    """Compute and write every item, in so many processes; the files as they are there."""
    write = partial(to_file, compute=compute, folder=folder)
    if processes == 1:
        yield from map(write, items)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(write, item) for item in items]):
            yield future.result()


def to_file(item: Item, compute: Callable[[Item], Mapping[str, Any]], folder: Path) -> Path:
    """Whole or not at all: the file takes its name when it is written."""
    path = folder / item.file
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(compute(item), sort_keys=True))
    return part.replace(path)
