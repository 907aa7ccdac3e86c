"""Transition table of assignments: state and move to next state. Pure."""

from collections.abc import Mapping
from enum import StrEnum

from loadmaster.protocol import AssignmentState, ReasonClass

S = AssignmentState


class AssignmentMove(StrEnum):
    ACCEPT = "accept"
    PREPARE = "prepare"
    RUN = "run"
    STOP = "stop"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"
    PREEMPT = "preempt"
    REJECT = "reject"
    LOSE_CONTACT = "lose_contact"
    LOSE = "lose"


LIVE = frozenset({S.OFFERED, S.ACCEPTED, S.PREPARING, S.RUNNING, S.STOPPING, S.UNKNOWN})
"""States that hold device slots; an offer holds them for its job, not yet on the node."""

ENDED = frozenset(S) - LIVE
"""Final states."""

USES_RETRY = frozenset({ReasonClass.USER, ReasonClass.OOM})
"""Reasons that count against a job's max_retries."""

HELD_BY_AGENT = (S.ACCEPTED, S.PREPARING, S.RUNNING, S.STOPPING)
"""States of what an agent holds and reports."""

_TAKEN = (*HELD_BY_AGENT, S.UNKNOWN)
M = AssignmentMove

MOVES: Mapping[tuple[AssignmentState, AssignmentMove], AssignmentState] = {
    (S.OFFERED, M.ACCEPT): S.ACCEPTED,
    (S.OFFERED, M.REJECT): S.REJECTED,
    (S.ACCEPTED, M.REJECT): S.REJECTED,
    # Nothing runs of an offer that nobody has taken: it may be withdrawn at once.
    (S.OFFERED, M.CANCEL): S.CANCELLED,
    (S.OFFERED, M.PREEMPT): S.PREEMPTED,
    (S.OFFERED, M.LOSE): S.LOST,
    (S.ACCEPTED, M.PREPARE): S.PREPARING,
    **{(s, M.RUN): S.RUNNING for s in (S.ACCEPTED, S.PREPARING, S.UNKNOWN)},
    **{(s, M.STOP): S.STOPPING for s in (S.ACCEPTED, S.PREPARING, S.RUNNING, S.UNKNOWN)},
    # A job may end by itself at any moment after its acceptance, also while it is being stopped.
    **{(s, M.SUCCEED): S.SUCCEEDED for s in _TAKEN},
    **{(s, M.FAIL): S.FAILED for s in _TAKEN},
    **{(s, M.CANCEL): S.CANCELLED for s in _TAKEN},
    **{(s, M.PREEMPT): S.PREEMPTED for s in _TAKEN},
    # The agent is silent: nobody knows. It comes back with the state it reports, or is lost after
    # lease + grace + margin.
    **{(s, M.LOSE_CONTACT): S.UNKNOWN for s in HELD_BY_AGENT},
    (S.UNKNOWN, M.LOSE): S.LOST,
    (S.UNKNOWN, M.ACCEPT): S.ACCEPTED,
    (S.UNKNOWN, M.PREPARE): S.PREPARING,
}

MOVE_TO: Mapping[AssignmentState, AssignmentMove] = {
    S.ACCEPTED: M.ACCEPT,
    S.PREPARING: M.PREPARE,
    S.RUNNING: M.RUN,
    S.STOPPING: M.STOP,
    S.SUCCEEDED: M.SUCCEED,
    S.FAILED: M.FAIL,
    S.CANCELLED: M.CANCEL,
    S.PREEMPTED: M.PREEMPT,
    S.REJECTED: M.REJECT,
    S.UNKNOWN: M.LOSE_CONTACT,
    S.LOST: M.LOSE,
}
"""Move to each state; agents report all of these states but UNKNOWN and LOST."""


class IllegalAssignmentMoveError(Exception):
    """Move that the table does not have from that state."""


def check_move(state: AssignmentState, move: AssignmentMove) -> AssignmentState:
    """Return the state after `move`; raise IllegalAssignmentMoveError if the table has none."""
    try:
        return MOVES[state, move]
    except KeyError:
        raise IllegalAssignmentMoveError(f"an assignment that is {state} cannot {move}") from None
