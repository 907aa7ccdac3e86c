"""The protocol of a policy and the errors it may raise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from policies.contract.plan import Plan
from policies.contract.snapshot import Snapshot


class PolicyError(Exception):
    """A policy could not decide. The round keeps what runs and says so."""


class UnknownPolicyError(PolicyError):
    """No policy of that name; the message lists the known ones."""


class PolicyParameterError(PolicyError):
    """A parameter is unknown or out of range; the message names it and what would be right."""


class SolverFailedError(PolicyError):
    """A solver ended without a usable solution (infeasible, error, or out of its budget)."""


class Policy(Protocol):
    """A pure function from a snapshot to a plan. Same snapshot (and seed in it), same plan."""

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Decide. Raises PolicyError where no decision can be made; never changes anything."""
        ...


def with_round_cache(policy: Policy) -> Policy:
    """Return a policy for the rounds of one world: with a cache of its own, if it keeps one.

    A policy that has `new_cache()` takes `cache`, too. Its plans never depend on what is in it.
    """
    new_cache: Callable[[], object] | None = getattr(policy, "new_cache", None)
    if new_cache is None:
        return policy
    decide: Callable[..., Plan] = policy
    return partial(decide, cache=new_cache())


def queue_only(policy: Policy) -> bool:
    """Whether the policy says (by a class attribute `queue_only = True`) that it decides about the
    queue alone.

    Such a policy never touches what runs, what it gives to waiting jobs depends on them and on what
    is free, not on what else runs, and a job that found no place finds none later either while
    nothing becomes free. A simulation may then leave out rounds that could change nothing. What
    does not say so is asked in every round.
    """
    return getattr(policy, "queue_only", False) is True
