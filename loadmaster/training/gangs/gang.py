"""Interface of a gang to the launch of one rank; and a launch without other ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from loadmaster.training.checkpoints import Checkpoint

Leaving = Callable[[], str | None]
"""Returns why this rank has to end, or None."""


class Gang(Protocol):
    """This rank among the ranks of its launch.

    Attributes:
        leads: this rank leads the gang and alone writes checkpoints.
        finds: this rank looks for the checkpoint itself instead of being told.
    """

    leads: bool
    finds: bool

    def meet(self, leaving: Leaving, newest: Checkpoint | None) -> Checkpoint | None:
        """Wait for the others; return the checkpoint to begin at, the lead's newest.

        Raises LeftEarly if told to leave, GangBroken if a rank is lost or missing.
        """
        ...

    def begin(self, step: int) -> None:
        """Begin training after this step."""
        ...

    def heeds(self, reason: str) -> bool:
        """Return True if this rank's reason to end counts for the gang."""
        ...

    @property
    def is_ending(self) -> bool:
        """Return True if the gang is about to end."""
        ...

    def pass_boundary(self, done: int, reason: str | None) -> str | None:
        """Return None to do another step, else why the gang ends here. Raises GangBroken."""
        ...

    def part(self, done: int, saved: int | None) -> int | None:
        """Wait for the others at the end; return the saved step.

        Raises GangBroken if the lead was lost before it saved.
        """
        ...

    def saving(self) -> AbstractContextManager[None]:
        """Keep this rank from being ended by force while it writes a checkpoint."""
        ...

    def leave(self) -> None:
        """Leave the training loop, whatever the cause."""
        ...


class SingleRank:
    """A launch whose ranks do not know each other; rank 0 writes the checkpoints."""

    is_ending = False
    finds = True

    def __init__(self, rank: int = 0) -> None:
        self.leads = rank == 0

    def meet(self, leaving: Leaving, newest: Checkpoint | None) -> Checkpoint | None:
        return newest

    def begin(self, step: int) -> None:
        """Nothing to agree on."""

    def heeds(self, reason: str) -> bool:
        return True

    def pass_boundary(self, done: int, reason: str | None) -> str | None:
        return reason

    def part(self, done: int, saved: int | None) -> int | None:
        return saved

    def saving(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def leave(self) -> None:
        """Nothing to leave."""
