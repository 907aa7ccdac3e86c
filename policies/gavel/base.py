"""The base of Gavel's policies: the forms in which each comes, and the way to its plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np

from policies.contract.plan import Plan
from policies.contract.policy import parameter
from policies.contract.snapshot import Floats, Ints, Snapshot
from policies.gavel.agnostic import agnostic
from policies.gavel.allocation.grouping import GroupingOptions
from policies.gavel.allocation.observe import Observed
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.policy import ShareRule, plan_of

Solver: TypeAlias = Callable[[AllocationProblem], Shares]
"""Shares of a problem. What else it knows is by class or GPU type, so that it fits both forms."""

Notes: TypeAlias = MutableMapping[str, Any]
"""What a policy notes while it makes shares, for the next time: plain data in the plan's memory."""

ONE_STEP = 1.0
"""Steps left to a job at least: one that is there has something to do, if only to say it ended."""


@dataclass(frozen=True, slots=True)
class SharePolicy(ABC):
    """A row of Gavel's table of policies: says what its shares are (`_solver`), the rest is here.

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
        """Return the plan. Raises SolverFailedError where no shares can be had."""
        notes = self._notes(snapshot)
        pairs = self.form == "sharing"
        rule = ShareRule(
            name=self.name,
            memory_of=repr(self),
            allocate=partial(self._allocate, notes),
            options=replace(self._grouping(snapshot), spread=self.spread, pairs=pairs),
            recompute_s=self.recompute_s,
            depend_on=self._depend_on(snapshot),
            fills=self._fills(),
        )
        plan = plan_of(snapshot, rule)
        if not notes:
            return plan
        message = self._message(snapshot, notes)
        return replace(plan, memory={**plan.memory, "notes": notes}, message=message)

    @abstractmethod
    def _solver(self, observed: Observed, notes: Notes) -> Solver:
        """Return how the observed time is shared; it may write notes when it is called."""

    def _grouping(self, snapshot: Snapshot) -> GroupingOptions:
        """Return what job classes distinguish, but for `spread` and `pairs`."""
        return GroupingOptions()

    def _depend_on(self, snapshot: Snapshot) -> str:
        """Return what shares depend on besides the problem: they are made anew when it changes."""
        return ""

    def _fills(self) -> bool:
        """Return True if GPUs that the shares leave idle go to any job that can use them."""
        return True

    def _message(self, snapshot: Snapshot, notes: Notes) -> str:
        """Return what the plan says of the notes."""
        return ""

    def _notes(self, snapshot: Snapshot) -> Notes:
        """Return the notes of the round before, if they are this policy's."""
        memory = snapshot.memory
        return dict(memory.get("notes", {})) if memory.get("policy") == repr(self) else {}

    def _allocate(self, notes: Notes, observed: Observed) -> Shares:
        solver = self._solver(observed, notes)
        if self.form == "agnostic":
            return agnostic(solver, observed.problem)
        return solver(observed.problem)


def steps_left(observed: Observed) -> Floats:
    """float64[M]: steps left to each job, of problems in which every job is a class."""
    return np.maximum(observed.number("remaining_steps"), ONE_STEP)


def queue_positions(observed: Observed) -> Ints:
    """int64[M]: position in the queue of each class of one job, by arrival, from 0."""
    arrival = observed.number("arrival_s")
    position = np.empty(len(arrival), dtype=np.int64)
    position[np.argsort(arrival, kind="stable")] = np.arange(len(arrival))
    return position
