"""The end of a container's run, from the Engine's report and the guard's. Pure."""

import signal
from dataclasses import replace
from typing import Any

from loadmaster.agent.outcome import EXIT_PREEMPTED, EXIT_STALE_FENCE
from loadmaster.agent.runtimes.base import Exit
from loadmaster.agent.runtimes.docker.port import Container
from loadmaster.agent.runtimes.folders import exit_of
from loadmaster.protocol import ReasonClass

KILLED = 128 + signal.SIGKILL
"""Exit code of a killed container."""

LONGEST_ERROR = 1000

NOT_PROCESS_1 = 18
NO_PYTHON_OR_SLEEP = 19
"""Exit codes of `guarding/guard.sh` before the guard begins."""

NO_GUARD = {
    NOT_PROCESS_1: "the guard is not process 1 of its container",
    NO_PYTHON_OR_SLEEP: (
        "the image has neither Python 3.9 nor the command sleep, of which the lease guard needs"
        " one: add one"
    ),
}
"""What went wrong, by exit code."""

NOT_OOM_CODES = (0, EXIT_PREEMPTED, EXIT_STALE_FENCE)
"""Exit codes of jobs that were not killed for memory, even if another of their processes was."""


def end_of(container: Container, report: dict[str, Any] | None, begun: bool) -> Exit:
    """Return the end of a run whose container has ended.

    `report`: the guard's `exit.json`, which the job could have written too; None if there is none.
    `begun`: the guard had taken over the launch before the container ended.
    """
    if report is None:
        return _end_without_report(container, begun)

    # 1. The report as the agent believes it: a job cannot say who is to blame for its end.
    ended_at_s = report.get("ended_at_s") or container.ended_at_s
    try:
        ended = exit_of({**report, "blame": None, "ended_at_s": ended_at_s})
    except (TypeError, ValueError, OverflowError):
        return _end_without_report(container, begun)

    # 2. The Engine tells of any process that was killed for memory. That is why the job failed
    #    unless it was stopped, or ended as it wanted.
    failed_by_itself = ended.stopped_by is None and ended.exit_code not in NOT_OOM_CODES
    is_oom = container.oom and failed_by_itself
    return replace(ended, error=ended.error[:LONGEST_ERROR], oom=ended.oom or is_oom)


def _end_without_report(container: Container, begun: bool) -> Exit:
    """Return the end of a run whose guard was killed, or never began."""
    if container.oom:
        return Exit(
            container.ended_at_s, exit_code=KILLED, killed=True, oom=True, error="out of memory"
        )
    if begun:
        why = container.error or "the run's container was killed"
        return Exit(
            container.ended_at_s, killed=True, error=f"{why} (exit code {container.exit_code})"
        )
    usual = f"the guard ended with exit code {container.exit_code} {container.error}".strip()
    why = NO_GUARD.get(container.exit_code, usual)
    return Exit(container.ended_at_s, started=False, error=why, blame=ReasonClass.IMAGE)


def start_failure(at_s: float, error: str) -> Exit:
    """Return the end of a run whose container the Engine could not start; `error`: its words."""
    blame = ReasonClass.NODE
    if "device driver" in error or "nvidia" in error.lower():
        blame = ReasonClass.GPU
    elif "exec" in error and "no such file" in error.lower():
        blame = ReasonClass.IMAGE
    return Exit(at_s, started=False, error=f"the container cannot be started: {error}", blame=blame)
