"""Epoch after epoch over a loader, from any position on, knowing at any time where it stands."""

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Generic, TypeVar

from loadmaster.training.checkpoints import Position

Batch = TypeVar("Batch")


class Epochs(Generic[Batch]):
    """The batches from a position on, epoch after epoch, knowing at any time where it stands.

    A loader with `set_epoch(epoch)` is told of each epoch before it begins. One with
    `iter_from(batch)` yields the batches of the epoch from that one on; any other is asked for all
    of them, and those before it are thrown away.
    """

    def __init__(self, loader: Iterable[Batch], position: Position, *, again: bool) -> None:
        self._loader = loader
        self._again = again
        self.epoch = position.epoch
        self.batch = 0
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
            for batch in self._rest():
                self.batch += 1
                yield batch
            if not self.batch:
                raise ValueError(
                    f"the loader yielded no batch in epoch {self.epoch}: give one that can be"
                    " iterated again"
                )
            if not self._again:
                return
            self.epoch, self.batch, self._skip = self.epoch + 1, 0, 0

    def _rest(self) -> Iterable[Batch]:
        """The batches of the epoch that are not used yet."""
        if callable(iter_from := getattr(self._loader, "iter_from", None)):
            rest: Iterable[Batch] = iter_from(self._skip)
            return rest
        return islice(self._loader, self._skip, None)


def _length(loader: object) -> int | None:
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # has the method, but its data have no length
        return None
