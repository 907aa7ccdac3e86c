"""The life of a job: which move leads from which state to which. Pure; the table is the contract.

held <-> queued -> starting -> running -> completed
profiling --^         |  ^        |   `-> queued (pre-empted, lost, retried) | failed
                      v  |        v
                    stopping (pre-emption under way) ; cancelling -> cancelled
"""

from collections.abc import Mapping
from enum import StrEnum


class JobState(StrEnum):
    HELD = "held"
    PROFILING = "profiling"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobMove(StrEnum):
    HOLD = "hold"
    RELEASE = "release"
    RELEASE_TO_PROFILE = "release_to_profile"
    PROFILE = "profile"
    PROFILED = "profiled"
    PLACE = "place"
    RUN = "run"
    PREEMPT = "preempt"
    STOPPED = "stopped"
    RETRY = "retry"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    CANCELLED = "cancelled"
    REQUEUE = "requeue"


S = JobState
M = JobMove

WAITING = frozenset({S.QUEUED})
"""States in which the optimiser may place a job."""

PLACED = frozenset({S.STARTING, S.RUNNING, S.STOPPING})
"""States with live training assignments."""

ENDED = frozenset({S.COMPLETED, S.FAILED, S.CANCELLED})
"""Final states; only REQUEUE leaves FAILED and CANCELLED."""

ACTIVE = frozenset(S) - ENDED
SHOWN_AS_RUNNING = tuple(sorted(PLACED | {S.CANCELLING}))
SHOWN_AS_WAITING = tuple(sorted({S.QUEUED, S.PROFILING, S.HELD}))
"""States of the queue page's first two groups (`Job.queue_rank`)."""

MOVES: Mapping[tuple[JobState, JobMove], JobState] = {
    (S.QUEUED, M.HOLD): S.HELD,
    (S.PROFILING, M.HOLD): S.HELD,
    # A job that runs is stopped first (PREEMPT) and held when it is back in the queue.
    (S.HELD, M.RELEASE): S.QUEUED,
    (S.HELD, M.RELEASE_TO_PROFILE): S.PROFILING,
    (S.QUEUED, M.PROFILE): S.PROFILING,
    (S.PROFILING, M.PROFILED): S.QUEUED,
    (S.QUEUED, M.PLACE): S.STARTING,
    (S.STARTING, M.RUN): S.RUNNING,
    (S.STARTING, M.PREEMPT): S.STOPPING,
    (S.RUNNING, M.PREEMPT): S.STOPPING,
    # STOPPED: the assignment is over and the job goes back to the queue (pre-empted, rejected,
    # lost).
    **{(s, M.STOPPED): S.QUEUED for s in (S.STARTING, S.RUNNING, S.STOPPING)},
    # RETRY: it failed by its own fault but has retries left.
    **{(s, M.RETRY): S.QUEUED for s in (S.STARTING, S.RUNNING, S.STOPPING)},
    **{(s, M.COMPLETE): S.COMPLETED for s in (S.STARTING, S.RUNNING, S.STOPPING, S.CANCELLING)},
    **{(s, M.FAIL): S.FAILED for s in (S.PROFILING, S.QUEUED, S.STARTING, S.RUNNING, S.STOPPING)},
    # CANCEL is a wish: with live assignments the job is CANCELLING until they are gone.
    # A held or queued job may lend its command to a profile run that is still under way.
    **{
        (s, M.CANCEL): S.CANCELLING
        for s in (S.HELD, S.QUEUED, S.PROFILING, S.STARTING, S.RUNNING, S.STOPPING)
    },
    **{(s, M.CANCELLED): S.CANCELLED for s in (S.HELD, S.QUEUED, S.PROFILING, S.CANCELLING)},
    (S.FAILED, M.REQUEUE): S.QUEUED,
    (S.CANCELLED, M.REQUEUE): S.QUEUED,
}


class IllegalJobMoveError(Exception):
    """Move that the table does not have from that state."""


def check_move(state: JobState, move: JobMove) -> JobState:
    """Return the state after `move`; raise IllegalJobMoveError if the table has none."""
    try:
        return MOVES[state, move]
    except KeyError:
        raise IllegalJobMoveError(f"a job that is {state} cannot {move}") from None
