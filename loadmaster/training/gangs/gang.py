"""What a launch asks of its gang; and the launch of one rank, which has nobody to ask."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from loadmaster.training.checkpoints import Checkpoint

Leaving = Callable[[], str | None]
"""Why this rank is to end, if it is."""


class Gang(Protocol):
    """This rank among the ranks of its launch.

    Attributes:
        leads: whether this rank speaks for the gang: it alone writes checkpoints.
        finds: whether this rank looks for the checkpoint itself, instead of being told.
    """

    leads: bool
    finds: bool

    def meet(self, leaving: Leaving, newest: Checkpoint | None) -> Checkpoint | None:
        """Wait for the others; the checkpoint that all begin at, which is the lead's newest.

        Raises LeftEarly if told to leave meanwhile, GangBroken if a rank is lost or does not come.
        """
        ...

    def begin(self, step: int) -> None:
        """The training begins after so many steps."""
        ...

    def heeds(self, reason: str) -> bool:
        """Whether this rank's reason to end is the gang's."""
        ...

    @property
    def is_ending(self) -> bool:
        """Whether the gang is about to end, so that nothing need be waited for."""
        ...

    def pass_boundary(self, done: int, reason: str | None) -> str | None:
        """After so many steps and perhaps with a reason to end: None to do another step, else why
        this was the last of all.

        Raises GangBroken.
        """
        ...

    def part(self, done: int, saved: int | None) -> int | None:
        """This rank's loop is over after so many steps; the lead has saved what it could. Wait for
        the others; what is saved.

        Raises GangBroken where the lead was lost before it had saved.
        """
        ...

    def saving(self) -> AbstractContextManager[None]:
        """While this rank writes a checkpoint: it is not ended by force meanwhile."""
        ...

    def leave(self) -> None:
        """This rank is out of the loop, whatever the cause."""
        ...


class SingleRank:
    """A launch of one rank, or one that knows no others: each then is on its own, and rank 0 writes
    the checkpoints.
    """

    is_ending = False
    finds = True

    def __init__(self, rank: int = 0) -> None:
        self.leads = rank == 0

    def meet(self, leaving: Leaving, newest: Checkpoint | None) -> Checkpoint | None:
        return newest

    def begin(self, step: int) -> None:
        """Nobody asks."""

    def heeds(self, reason: str) -> bool:
        return True

    def pass_boundary(self, done: int, reason: str | None) -> str | None:
        return reason

    def part(self, done: int, saved: int | None) -> int | None:
        return saved

    def saving(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def leave(self) -> None:
        """Nobody is there."""
