"""The protocol of a policy and the errors it may raise."""

from __future__ import annotations

from typing import Protocol

from policies.plan import Plan
from policies.snapshot import Snapshot


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
