"""Progress of a run from its JSON lines, and the meaning of its end. Pure but for reading."""

import math
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from loadmaster.agent.runtimes.base import PROGRESS, Exit, RunId, Runtime, StopBy
from loadmaster.files import parse_object
from loadmaster.protocol import OUT_OF_SHARED_MEMORY
from loadmaster.protocol import AssignmentState as State
from loadmaster.protocol import ReasonClass as Reason
from loadmaster.samples import NOT_NUMBERS, ProgressSample
from loadmaster.training.run_folder import TERM_OVER

EXIT_PREEMPTED = 75
EXIT_STALE_FENCE = 76
LIMIT_WORDS = {
    StopBy.WALLTIME: "it ran for its whole walltime and was ended",
    StopBy.DEADLINE: "its deadline came while it ran, and it was ended",
}
_TERMED = (-signal.SIGTERM, 128 + signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final state an agent reports, with its reason in words."""

    state: State
    reason_class: Reason | None = None
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
    gpu_fault: str = "",
) -> Outcome:
    """The outcome of a run.

    The training library says that it left with its state `saved`, `why` it left, and why its gang
    `fell` apart. `shares_gpu`: memory that is missing on a shared GPU is no fault of the job's, and
    neither is the `gpu_fault` of a GPU that it held.
    """
    code = ended.exit_code
    if ended.stopped_by in LIMIT_WORDS and ended.started:
        return _failed(Reason.LIMIT, LIMIT_WORDS[ended.stopped_by], code)
    if code == 0:
        return Outcome(State.SUCCEEDED, exit_code=0)
    if not ended.started:
        return _not_started(ended)
    if code == EXIT_STALE_FENCE:
        return _failed(Reason.LEASE, "a newer launch of the job owns its checkpoints", code)
    if ended.stopped_by is not None:
        return _stopped(ended, stopped_by_operator)
    if ended.oom:
        return _failed(Reason.OOM, "the kernel killed the job: out of memory", code)
    if fell:
        return _failed(Reason.GANG, fell, code)
    if code == EXIT_PREEMPTED and saved:
        gang = f"the job left with its gang, which was to stop ({why})"
        words = "the job's term was over" if why in ("", TERM_OVER) else gang
        return Outcome(State.PREEMPTED, Reason.PREEMPT, words, code)
    if code is None:
        return _failed(Reason.NODE, ended.error or "the run was lost")
    if shares_gpu and _NO_GPU_MEMORY.search(last_words):
        return _failed(Reason.GPU, f"{OUT_OF_SHARED_MEMORY}: {last_words}", code)
    signalled = code < 0 and -code in set(signal.Signals)
    how = f"signal {signal.Signals(-code).name}" if signalled else f"exit code {code}"
    words = f": {last_words}" if last_words else ""
    ending = f"the job ended with {how}{words}"
    if gpu_fault:
        return _failed(Reason.GPU, f"{gpu_fault}; {ending}", code)
    return _failed(Reason.USER, ending, code)


def _failed(reason_class: Reason, reason: str, code: int | None = None) -> Outcome:
    return Outcome(State.FAILED, reason_class, reason, code)


def _not_started(ended: Exit) -> Outcome:
    match ended.stopped_by:
        case StopBy.CANCEL:
            return Outcome(State.CANCELLED, reason=ended.error)
        case StopBy.PREEMPT:
            return Outcome(State.PREEMPTED, Reason.PREEMPT, ended.error)
        case StopBy.LEASE:
            return _failed(Reason.LEASE, ended.error)
    users = ended.error.startswith("the command")
    return _failed(ended.blame or (Reason.USER if users else Reason.NODE), ended.error)


def _stopped(ended: Exit, by_operator: bool) -> Outcome:
    code = ended.exit_code
    left_in_time = code == EXIT_PREEMPTED or code in _TERMED
    state = State.PREEMPTED if left_in_time else State.FAILED
    match ended.stopped_by:
        case StopBy.CANCEL:
            return Outcome(State.CANCELLED, Reason.OPERATOR, "cancelled", code)
        case StopBy.OOM:
            return _failed(Reason.OOM, "the job used more memory than it asked for", code)
        case StopBy.GPU_MEMORY:
            return _failed(Reason.GPU, OUT_OF_SHARED_MEMORY, code)
        case StopBy.LEASE:
            return Outcome(state, Reason.LEASE, "the lease ran out", code)
        case StopBy.PREEMPT:
            reason_class = Reason.OPERATOR if by_operator else Reason.PREEMPT
            words = "" if left_in_time else " and did not leave with its state saved"
            return Outcome(State.PREEMPTED, reason_class, f"the job was pre-empted{words}", code)
        case _:
            return Outcome(state, Reason.OPERATOR, "somebody on the node stopped the job", code)


EVENTS = frozenset({"start", "progress", "checkpoint", "preempted", "quota", "end"})
FELL = "fell"
"""The last word of a rank whose gang has lost another one."""

CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Standing:
    """State of a run: steps done, whether and why it leaves, why its gang broke."""

    step: int | None = None
    left: bool = False
    why: str = ""
    fell: str = ""


def read_samples(
    runtime: Runtime, run: RunId, offset: int
) -> tuple[tuple[ProgressSample, ...], int]:
    """The samples in the next chunk from an offset, and the offset after its last whole line.

    One more tells the server that some lines have figures that are no numbers.
    """
    chunk = runtime.read(run, PROGRESS, offset, CHUNK)
    end = chunk.rfind(b"\n") + 1
    if end == 0:  # no whole line yet, or one that is too long to be one of ours
        return (), offset + (len(chunk) if len(chunk) == CHUNK else 0)
    told = list(_objects(chunk[:end]))
    samples = [_with_setup(runtime, run, sample) for data in told if (sample := sample_of(data))]
    if any(_has_no_numbers(data) for data in told):
        samples.append(ProgressSample(0.0, NOT_NUMBERS, 0, 0, 0.0))
    return tuple(samples), offset + end


def _objects(chunk: bytes) -> Iterator[dict[str, Any]]:
    """Reports in these lines; blank ones, of which a chunk may be full, cost next to nothing."""
    for line in chunk.splitlines():
        if b"{" in line and (data := parse_object(line)):
            yield data


def _with_setup(runtime: Runtime, run: RunId, sample: ProgressSample) -> ProgressSample:
    """Set-up time from the launch, as the job knows only the age of its process."""
    started_at_s = runtime.started_at_s(run) if sample.setup_s is not None else None
    if sample.setup_s is None or started_at_s is None:
        return sample
    return replace(sample, setup_s=max(sample.setup_s, sample.at_s - started_at_s))


def standing(runtime: Runtime, run: RunId) -> Standing:
    """State of the run by the last lines of its progress."""
    size = runtime.size(run, PROGRESS)
    chunk = runtime.read(run, PROGRESS, max(0, size - CHUNK), CHUNK)
    found = Standing()
    for data in _objects(chunk):
        if data.get("event") == FELL:
            fell = str(data.get("reason") or "its gang fell apart")
            found = replace(found, left=False, fell=fell)
        elif sample := sample_of(data):
            left, why = sample.event == "preempted", str(data.get("reason") or "")
            found = Standing(sample.step, left, why, found.fell)
    return found


def sample_of(data: dict[str, Any]) -> ProgressSample | None:
    """The sample in a line's data, or None."""
    event, at_s = data.get("event"), _number(data.get("at_s"))
    step, launch_steps = _count(data.get("step")), _count(data.get("launch_steps", 0))
    if not _is_event(event) or at_s is None or step is None or launch_steps is None:
        return None
    names = ("steps_per_s", "loss", "overrun_fraction", "setup_s")
    optional = {name: _number(data.get(name)) for name in names}
    elapsed_s = _number(data.get("elapsed_s")) or 0.0
    return ProgressSample(at_s, str(event), step, launch_steps, elapsed_s, **optional)


def _has_no_numbers(data: dict[str, Any]) -> bool:
    """Return True for a report with figures that are left out; a loss may be anything."""
    names = ("elapsed_s", "steps_per_s", "overrun_fraction", "setup_s")
    told = [value for name in names if (value := data.get(name)) is not None]
    wrong = sample_of(data) is None or any(_number(value) is None for value in told)
    return _is_event(data.get("event")) and wrong


def _is_event(value: object) -> bool:
    return isinstance(value, str) and value in EVENTS


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 2**63 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
