"""What the end of a run means for its assignment. Pure."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from loadmaster.agent.runtimes.base import Exit, StopBy
from loadmaster.protocol import OUT_OF_SHARED_MEMORY, AssignmentState, ReasonClass
from loadmaster.training.run_folder import TERM_OVER

EXIT_PREEMPTED = 75
EXIT_STALE_FENCE = 76
_TERMED = (-signal.SIGTERM, 128 + signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final state an agent reports, with its reason in words."""

    state: AssignmentState
    reason_class: ReasonClass | None = None
    reason: str = ""
    exit_code: int | None = None


_NO_GPU_MEMORY = re.compile(r"out[ _]?of[ _]?memory|resource_?exhausted", re.IGNORECASE)
"""Messages of CUDA, PyTorch, TensorFlow, JAX and CuPy for a full GPU memory."""


def outcome_of(
    ended: Exit,
    *,
    saved: bool = False,
    why: str = "",
    fell: str = "",
    last_words: str = "",
    stopped_by_operator: bool = False,
    shares_gpu: bool = False,
) -> Outcome:
    """The outcome of a run.

    Args:
        ended: how the run ended.
        saved: whether the training library said that it leaves with its state saved (its event
        "preempted").
        why: what it said it leaves for.
        fell: why its gang fell apart, if the library said that another rank was gone first.
        last_words: the last lines of stderr, masked.
        stopped_by_operator: whether the stop came from the agent's own shutdown.
        shares_gpu: whether other runs were on its devices: memory that is missing there is no fault
        of the job's.
    """
    code = ended.exit_code
    if code == 0:
        return Outcome(AssignmentState.SUCCEEDED, exit_code=0)
    if not ended.started:
        return _not_started(ended)
    if code == EXIT_STALE_FENCE:
        return Outcome(
            AssignmentState.FAILED,
            ReasonClass.LEASE,
            "a newer launch of the job owns its checkpoints",
            code,
        )
    if ended.stopped_by is not None:
        return _stopped(ended, stopped_by_operator)
    if ended.oom:
        return Outcome(
            AssignmentState.FAILED,
            ReasonClass.OOM,
            "the kernel killed the job: out of memory",
            code,
        )
    if fell:
        return Outcome(AssignmentState.FAILED, ReasonClass.GANG, fell, code)
    if code == EXIT_PREEMPTED and saved:
        words = (
            "the job's term was over"
            if why in ("", TERM_OVER)
            else f"the job left with its gang, which was to stop ({why})"
        )
        return Outcome(AssignmentState.PREEMPTED, ReasonClass.PREEMPT, words, code)
    if code is None:
        return Outcome(AssignmentState.FAILED, ReasonClass.NODE, ended.error or "the run was lost")
    if shares_gpu and _NO_GPU_MEMORY.search(last_words):
        return Outcome(
            AssignmentState.FAILED, ReasonClass.GPU, f"{OUT_OF_SHARED_MEMORY}: {last_words}", code
        )
    return Outcome(AssignmentState.FAILED, ReasonClass.USER, _user_reason(code, last_words), code)


def _not_started(ended: Exit) -> Outcome:
    if ended.stopped_by is StopBy.CANCEL:
        return Outcome(AssignmentState.CANCELLED, reason=ended.error)
    if ended.stopped_by is StopBy.PREEMPT:
        return Outcome(AssignmentState.PREEMPTED, ReasonClass.PREEMPT, ended.error)
    if ended.stopped_by is StopBy.LEASE:
        return Outcome(AssignmentState.FAILED, ReasonClass.LEASE, ended.error)
    if ended.blame is not None:
        return Outcome(AssignmentState.FAILED, ended.blame, ended.error)
    if ended.error.startswith("the command"):
        return Outcome(AssignmentState.FAILED, ReasonClass.USER, ended.error)
    return Outcome(AssignmentState.FAILED, ReasonClass.NODE, ended.error)


def _stopped(ended: Exit, by_operator: bool) -> Outcome:
    code = ended.exit_code
    left_in_time = code == EXIT_PREEMPTED or code in _TERMED
    state = AssignmentState.PREEMPTED if left_in_time else AssignmentState.FAILED
    match ended.stopped_by:
        case StopBy.CANCEL:
            return Outcome(AssignmentState.CANCELLED, ReasonClass.OPERATOR, "cancelled", code)
        case StopBy.OOM:
            return Outcome(
                AssignmentState.FAILED,
                ReasonClass.OOM,
                "the job used more memory than it asked for",
                code,
            )
        case StopBy.GPU_MEMORY:
            return Outcome(AssignmentState.FAILED, ReasonClass.GPU, OUT_OF_SHARED_MEMORY, code)
        case StopBy.LEASE:
            return Outcome(state, ReasonClass.LEASE, "the lease ran out", code)
        case StopBy.PREEMPT:
            reason_class = ReasonClass.OPERATOR if by_operator else ReasonClass.PREEMPT
            words = "" if left_in_time else " and did not leave with its state saved"
            return Outcome(
                AssignmentState.PREEMPTED, reason_class, f"the job was pre-empted{words}", code
            )
        case _:
            return Outcome(
                state, ReasonClass.OPERATOR, "somebody on the node stopped the job", code
            )


def _user_reason(code: int, last_words: str) -> str:
    how = (
        f"signal {signal.Signals(-code).name}"
        if code < 0 and -code in set(signal.Signals)
        else f"exit code {code}"
    )
    return f"the job ended with {how}" + (f": {last_words}" if last_words else "")
