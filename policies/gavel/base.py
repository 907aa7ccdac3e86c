"""What all of Gavel's policies have in common: the forms in which each comes, and the way from a
snapshot to its plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np

from policies.contract.parameters import parameter
from policies.contract.plan import Plan
from policies.contract.snapshot import Floats, Ints, Snapshot
from policies.gavel.agnostic import agnostic
from policies.gavel.allocation.job_classes import GroupingOptions
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.policy import Sharing, plan_of

Program: TypeAlias = Callable[[AllocationProblem], Shares]
"""Shares of a problem; what goes into them beside it is by class or by GPU type, so that it fits
both forms.
"""

Notes: TypeAlias = MutableMapping[str, Any]
"""What a policy writes down while it makes shares and reads the next time: plain data, in the
plan's memory.
"""

ONE_STEP = 1.0
"""What is left to a job at least: one that is there has something left to do, be it to say that it
has ended.
"""


@dataclass(frozen=True, slots=True)
class SharePolicy(ABC):
    """A row of Gavel's table of policies: says what its shares are (`_program`), the rest is here.

    `name` is its name in the registry. Decisions are those of `policies.gavel.policy.plan_of`.
    """

    name: ClassVar[str]

    form: str = parameter(
        "aware",
        meaning=(
            "aware: by each job's speed on each type; agnostic: as if types were alike; sharing:"
            " aware, two may share a GPU"
        ),
        choices=("aware", "agnostic", "sharing"),
    )
    spread: bool = parameter(
        False, meaning="gangs may have time on several nodes where their speed there is known"
    )
    recompute_s: float = parameter(
        0.0,
        meaning=(
            "shares are made anew when they are as old, 0: only when jobs, nodes or speeds have"
            " changed"
        ),
        minimum=0.0,
        maximum=1e9,
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Who has a turn in this round. Raises SolverFailedError where no shares can be had."""
        notes = self._notes(snapshot)
        asked = replace(self._asked(snapshot), spread=self.spread, pairs=self.form == "sharing")
        allocate = partial(self._allocate, notes)
        sharing = Sharing(
            self.name,
            repr(self),
            allocate,
            asked,
            self.recompute_s,
            self._beside(snapshot),
            self._fills(),
        )
        plan = plan_of(snapshot, sharing)
        if not notes:
            return plan
        return replace(
            plan, memory={**plan.memory, "notes": notes}, message=self._message(snapshot, notes)
        )

    @abstractmethod
    def _program(self, observed: Observed, notes: Notes) -> Program:
        """How what was observed is shared; may write notes when it is called."""

    def _asked(self, snapshot: Snapshot) -> GroupingOptions:
        """What tells jobs apart, but for `spread` and `pairs`."""
        return GroupingOptions()

    def _beside(self, snapshot: Snapshot) -> str:
        """What shares depend on beside the problem: when it changes they are made anew."""
        return ""

    def _fills(self) -> bool:
        """Whether GPUs that the shares leave idle go to whoever can use them."""
        return True

    def _message(self, snapshot: Snapshot, notes: Notes) -> str:
        """What the plan says of the notes."""
        return ""

    def _notes(self, snapshot: Snapshot) -> Notes:
        """The notes of the round before, if they are this policy's."""
        memory = snapshot.memory
        return dict(memory.get("notes", {})) if memory.get("policy") == repr(self) else {}

    def _allocate(self, notes: Notes, observed: Observed) -> Shares:
        program = self._program(observed, notes)
        return (
            agnostic(program, observed.problem)
            if self.form == "agnostic"
            else program(observed.problem)
        )


def steps_left(observed: Observed) -> Floats:
    """float64[M]: steps left to each job, of problems in which every job is a class."""
    return np.maximum(observed.number("remaining_steps"), ONE_STEP)


def queue_positions(observed: Observed) -> Ints:
    """int64[M]: position in the queue of each class of one job, by arrival, from 0."""
    arrival = observed.number("arrival_s")
    position = np.empty(len(arrival), dtype=np.int64)
    position[np.argsort(arrival, kind="stable")] = np.arange(len(arrival))
    return position
