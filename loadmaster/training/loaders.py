"""Loaders of plain iterables: repeatable, resumable, divided among ranks."""

import os
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Generic, TypeVar

from loadmaster.training.run_folder import JobEnvironment

Batch = TypeVar("Batch")


class ByEpoch(Generic[Batch]):
    """Yields of `make(epoch)`, epoch after epoch: for generators, files and streams, which can be
    gone through only once.

        loader = ByEpoch(lambda epoch: read_batches("train.csv", seed=epoch))

    `make` must yield the same batches for the same epoch, or a resumed launch goes on with others.
    """

    def __init__(self, make: Callable[[int], Iterable[Batch]]) -> None:
        self._make = make
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._make(self._epoch))


class Sharded(Generic[Batch]):
    """This rank's part of a loader's batches: of every `world_size` in a row one for each rank, and
    what is left over for none.

    So all ranks have the same number of batches, and none waits for another at the end of an epoch.
    Without arguments rank and number of ranks are those of this launch. Every rank still reads all
    batches; it throws away those of the others.

    Raises:
        ValueError: there is no such rank.
    """

    def __init__(
        self, loader: Iterable[Batch], rank: int | None = None, world_size: int | None = None
    ) -> None:
        environment = JobEnvironment.read(os.environ)
        self._loader = loader
        self._rank = environment.rank if rank is None else rank
        self._size = environment.world_size if world_size is None else world_size
        if not 0 <= self._rank < self._size:
            raise ValueError(f"rank {self._rank} is none of {self._size}")

    def set_epoch(self, epoch: int) -> None:
        """Hand it on."""
        if callable(set_epoch := getattr(self._loader, "set_epoch", None)):
            set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        return self.iter_from(0)

    def iter_from(self, batch: int) -> Iterator[Batch]:
        """From this rank's batch of that number on."""
        first = batch * self._size
        if callable(iter_from := getattr(self._loader, "iter_from", None)):
            rest: Iterable[Batch] = iter_from(first)
        else:
            rest = islice(self._loader, first, None)
        source = iter(rest)
        while len(row := tuple(islice(source, self._size))) == self._size:
            yield row[self._rank]

    def __len__(self) -> int:
        """This rank's batches; TypeError where the loader does not know."""
        if not isinstance(self._loader, Sized):
            raise TypeError("the loader does not know how many batches it has")
        return len(self._loader) // self._size
