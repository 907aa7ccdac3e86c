"""Invariants: promises that hold through all faults, and how often a run has checked each."""

from collections.abc import Iterable
from dataclasses import dataclass

ONE_PROCESS = "no two processes of a job at a time"
LAUNCHED_ONCE = "each fence is used once"
JOB_LOST = "no job is lost"
JOB_DOUBLED = "no job is doubled"
RIGHT_END = "no job is failed by us"
STEPS = "no step is left out, or done again after a checkpoint"
DEVICES = "no device is held by more jobs than its slots"
SHARES = "no device is given beyond its shares"
PAIRS = "jobs that may share a GPU are beside each other"
GANGS = "a gang ends as a whole"
WALLTIMES = "jobs end at their walltime, or after the grace"
ARRAYS = "arrays keep their limit"
DEPENDENCIES = "no job begins before those that it waits for"
IMPOSSIBLE = "no job runs that waits for the impossible"
SEATS = "no seat is held at the end"
NODES = "no healthy node is lost"
MOVES = "each state follows from the one before"
BILLS = "no bill is negative, or counted twice"
ROUNDS = "a round is held within 10 s once all programs are at work"


@dataclass(frozen=True, slots=True)
class Invariant:
    """A promise by its name, the number of times it was checked, and a sentence a violation."""

    name: str
    checked: int
    wrong: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Return True if it was checked at all and never violated."""
        return bool(self.checked) and not self.wrong


def summed(found: Iterable[Invariant]) -> tuple[Invariant, ...]:
    """One invariant for each name, in the order in which they come first."""
    whole: dict[str, Invariant] = {}
    for one in found:
        before = whole.get(one.name, Invariant(one.name, 0))
        checked, wrong = before.checked + one.checked, (*before.wrong, *one.wrong)
        whole[one.name] = Invariant(one.name, checked, wrong)
    return tuple(whole.values())
