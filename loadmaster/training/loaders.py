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
    """This rank's part of a loader's batches: one of every `world_size`; a remainder is left out.

    So no rank waits for another at the end of an epoch. Rank and size are by default those of this
    launch; every rank reads all batches. Raises ValueError if there is no such rank.
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
        if callable(set_epoch := getattr(self._loader, "set_epoch", None)):
            set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        return self.iter_from(0)

    def iter_from(self, batch: int) -> Iterator[Batch]:
        """Yield this rank's batches from a number on."""
        source = iter(_rest_of(self._loader, batch * self._size))
        while len(row := tuple(islice(source, self._size))) == self._size:
            yield row[self._rank]

    def __len__(self) -> int:
        """This rank's batches; TypeError where the loader does not know."""
        if not isinstance(self._loader, Sized):
            raise TypeError("the loader does not know how many batches it has")
        return len(self._loader) // self._size


class Epochs(Generic[Batch]):
    """The batches from a position on, epoch after epoch; `epoch` and `batch` tell the position.

    A loader's `set_epoch` and `iter_from` are used if it has them; else used batches are skipped.
    """

    def __init__(self, loader: Iterable[Batch], position: Position, *, again: bool) -> None:
        self._loader, self._again = loader, again
        self.epoch, self.batch = position.epoch, 0
        self._skip = position.batch

    def __iter__(self) -> Iterator[Batch]:
        if self._skip and self._skip == _length(self._loader):
            if not self._again:
                return
            self.epoch, self._skip = self.epoch + 1, 0
        while True:
            if callable(set_epoch := getattr(self._loader, "set_epoch", None)):
                set_epoch(self.epoch)
            self.batch = self._skip
            for batch in _rest_of(self._loader, self._skip):
                self.batch += 1
                yield batch
            if not self.batch:
                text = f"the loader yielded no batch in epoch {self.epoch}"
                raise ValueError(f"{text}: give one that can be iterated again")
            if not self._again:
                return
            self.epoch, self.batch, self._skip = self.epoch + 1, 0, 0


def _rest_of(loader: Iterable[Batch], first: int) -> Iterable[Batch]:
    """The batches of the epoch from the `first` on."""
    if callable(iter_from := getattr(loader, "iter_from", None)):
        rest: Iterable[Batch] = iter_from(first)
        return rest
    return islice(loader, first, None)


def _length(loader: object) -> int | None:
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # has the method, but its data have no length
        return None
