"""Loaders of plain iterables: repeatable, resumable, divided among ranks."""

import os
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import Generic, TypeVar

from loadmaster.training.checkpoints import Position
from loadmaster.training.run_folder import JobEnvironment

Batch = TypeVar("Batch")


class ByEpoch(Generic[Batch]):
    """Batches of `make(epoch)`, for generators and files that can be gone through only once.

        loader = ByEpoch(lambda epoch: read_batches("train.csv", seed=epoch))

    `make` must yield the same batches for the same epoch, or a resumed launch uses others.
    """

    def __init__(self, make: Callable[[int], Iterable[Batch]]) -> None:
        self._make = make
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._make(self._epoch))


class Sharded(Generic[Batch]):
    """Loader of this rank's share of the batches: one of every `world_size` batches.

    Every rank reads all batches. A remainder at the end of an epoch is left out, so that no rank
    waits for another. Rank and size are by default those of this launch. Raises ValueError if there
    is no such rank.
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
        _set_epoch(self._loader, epoch)

    def __iter__(self) -> Iterator[Batch]:
        return self.iter_from(0)

    def iter_from(self, batch: int) -> Iterator[Batch]:
        """Yield this rank's batches from a number on."""
        source = iter(_rest_of(self._loader, batch * self._size))
        while True:
            one_for_each_rank = tuple(islice(source, self._size))
            if len(one_for_each_rank) < self._size:
                return
            yield one_for_each_rank[self._rank]

    def __len__(self) -> int:
        """Return the number of this rank's batches. Raises TypeError if it is not known."""
        if not isinstance(self._loader, Sized):
            raise TypeError("the loader does not know how many batches it has")
        return len(self._loader) // self._size


class Epochs(Generic[Batch]):
    """Batches from a position on, epoch after epoch; without `again` to the end of the first.

    `epoch` and `batch` are the position after the last batch. A loader's `set_epoch` and
    `iter_from` are called if it has them; else the batches before the position are read and
    skipped.
    """

    def __init__(self, loader: Iterable[Batch], position: Position, *, again: bool) -> None:
        self._loader = loader
        self._again = again
        self.epoch = position.epoch
        self.batch = 0
        self._skip = position.batch

    def __iter__(self) -> Iterator[Batch]:
        # 1. A position at the very end of an epoch is the beginning of the next one.
        if self._skip and self._skip == _length(self._loader):
            if not self._again:
                return
            self.epoch += 1
            self._skip = 0

        # 2. The rest of this epoch, then whole ones.
        while True:
            _set_epoch(self._loader, self.epoch)
            self.batch = self._skip
            for batch in _rest_of(self._loader, self._skip):
                self.batch += 1
                yield batch
            if not self.batch:
                text = f"the loader yielded no batch in epoch {self.epoch}"
                raise ValueError(f"{text}: give one that can be iterated again")
            if not self._again:
                return
            self.epoch += 1
            self.batch = 0
            self._skip = 0


def _set_epoch(loader: object, epoch: int) -> None:
    """Tell a loader the number of the epoch, if it has a method for that."""
    set_epoch = getattr(loader, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)


def _rest_of(loader: Iterable[Batch], first: int) -> Iterable[Batch]:
    """Return the batches of the epoch from number `first` on."""
    iter_from = getattr(loader, "iter_from", None)
    if callable(iter_from):
        batches: Iterable[Batch] = iter_from(first)
        return batches
    return islice(loader, first, None)


def _length(loader: object) -> int | None:
    """Return the number of batches of an epoch; None if the loader does not know it."""
    if not isinstance(loader, Sized):
        return None
    try:
        return len(loader)
    except TypeError:  # it has the method, but its data have no length
        return None
