import atexit
import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

from django.conf import settings

from policies.contract.plan import Plan
from policies.contract.policy import PolicyError
from policies.contract.snapshot import Snapshot
from policies.host.client import SolverProcess
from policies.host.registry import make

logger = logging.getLogger(__name__)


def solve_in_child(policy: str, parameters: Mapping[str, Any], snapshot: Snapshot) -> Plan:
    """Solve in the child, started on first use. PolicyError, also on timeout or death."""
    return kept_solver("SOLVER_TIMEOUT_S").solve(snapshot, policy, parameters)


def solve_here(policy: str, parameters: Mapping[str, Any], snapshot: Snapshot) -> Plan:
    """Solve in this process without time limit, for tests and replay. Raises PolicyError."""
    return make(policy, parameters)(snapshot)


def start_solver() -> None:
    """Start this process's solver, which warms up in the background."""
    try:
        kept_solver("SOLVER_TIMEOUT_S").start()
    except OSError as error:  # the first round tries again, and says in its own words what is wrong
        logger.warning("the solver does not start: %s", error)


def await_solver() -> None:
    """Wait until the solver has warmed up; its failure is reported by the round."""
    try:
        kept_solver("SOLVER_TIMEOUT_S").await_ready()
    except (OSError, PolicyError) as error:
        logger.warning("the solver does not start: %s", error)


@cache
def kept_solver(setting: str) -> SolverProcess:
    """Child of this process for questions limited by that setting, kept until it ends."""
    solver = SolverProcess(getattr(settings, setting))
    atexit.register(solver.close)
    return solver
