"""Outcome of a run that has ended, and its progress by the JSON lines that it writes.

Pure, except that progress is read through the runtime.
"""

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
"""Exit codes of the training library: it left early, or its checkpoints have a newer owner."""

LIMIT_WORDS = {
    StopBy.WALLTIME: "it ran for its whole walltime and was ended",
    StopBy.DEADLINE: "its deadline came while it ran, and it was ended",
}
_TERMED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a process that SIGTERM has ended, and of a shell that reports that."""

_NO_GPU_MEMORY = re.compile(r"out[ _]?of[ _]?memory|resource_?exhausted", re.IGNORECASE)
"""Messages of CUDA, PyTorch, TensorFlow, JAX and CuPy for a full GPU memory."""

EVENTS = frozenset({"start", "progress", "checkpoint", "preempted", "quota", "end"})
FELL = "fell"
"""Event by which a rank reports that its gang has lost another rank."""

CHUNK = 64 * 1024
"""Bytes of progress that are read at once."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final state that an agent reports, with its reason in words."""

    state: State
    reason_class: Reason | None = None
    reason: str = ""
    exit_code: int | None = None


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
    """Return the outcome of a run.

    By its progress the job left with its state `saved`, left for the reason `why`, and its gang
    `fell` apart for that reason. `last_words`: the end of its error output. `shares_gpu`: another
    job was on its GPU. `gpu_fault`: fault of a GPU that it held. Memory that is missing on a shared
    GPU, and the fault of a GPU, are not the job's own fault.
    """
    # 1. Ends that need no look at its output: limits, success, no start, stops, memory.
    code = ended.exit_code
    if ended.stopped_by in LIMIT_WORDS and ended.started:
        return _failed(Reason.LIMIT, LIMIT_WORDS[ended.stopped_by], code)
    if code == 0:
        return Outcome(State.SUCCEEDED, exit_code=0)
    if not ended.started:
        return _outcome_without_start(ended)
    if code == EXIT_STALE_FENCE:
        return _failed(Reason.LEASE, "a newer launch of the job owns its checkpoints", code)
    if ended.stopped_by is not None:
        return _outcome_of_stop(ended, stopped_by_operator)
    if ended.oom and code != EXIT_PREEMPTED:
        return _failed(Reason.OOM, "the kernel killed the job: out of memory", code)

    # 2. The job left by itself, before its end.
    if fell:
        return _failed(Reason.GANG, fell, code)
    if code == EXIT_PREEMPTED and saved:
        reason = "the job's term was over"
        if why not in ("", TERM_OVER):
            reason = f"the job left with its gang, which was to stop ({why})"
        return Outcome(State.PREEMPTED, Reason.PREEMPT, reason, code)
    if code is None:
        return _failed(Reason.NODE, ended.error or "the run was lost")

    # 3. It failed; a GPU may be the cause.
    if shares_gpu and _NO_GPU_MEMORY.search(last_words):
        return _failed(Reason.GPU, f"{OUT_OF_SHARED_MEMORY}: {last_words}", code)
    is_signal = code < 0 and -code in set(signal.Signals)
    ending = f"signal {signal.Signals(-code).name}" if is_signal else f"exit code {code}"
    reason = f"the job ended with {ending}"
    if last_words:
        reason = f"{reason}: {last_words}"
    if gpu_fault:
        return _failed(Reason.GPU, f"{gpu_fault}; {reason}", code)
    return _failed(Reason.USER, reason, code)


def _failed(reason_class: Reason, reason: str, code: int | None = None) -> Outcome:
    return Outcome(State.FAILED, reason_class, reason, code)


def _outcome_without_start(ended: Exit) -> Outcome:
    """Return the outcome of a run whose job never started."""
    match ended.stopped_by:
        case StopBy.CANCEL:
            return Outcome(State.CANCELLED, reason=ended.error)
        case StopBy.PREEMPT:
            return Outcome(State.PREEMPTED, Reason.PREEMPT, ended.error)
        case StopBy.LEASE:
            return _failed(Reason.LEASE, ended.error)
    reason_class = ended.blame
    if reason_class is None:
        is_of_command = ended.error.startswith("the command")
        reason_class = Reason.USER if is_of_command else Reason.NODE
    return _failed(reason_class, ended.error)


def _outcome_of_stop(ended: Exit, by_operator: bool) -> Outcome:
    """Return the outcome of a job that was stopped. `by_operator`: the agent was told to leave."""
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


@dataclass(frozen=True, slots=True)
class Standing:
    """State of a run by its progress.

    `step`: steps done. `left`: it left early, for the reason `why`. `fell`: reason why its gang
    fell apart; "" if it did not.
    """

    step: int | None = None
    left: bool = False
    why: str = ""
    fell: str = ""


def read_samples(
    runtime: Runtime, run: RunId, offset: int
) -> tuple[tuple[ProgressSample, ...], int]:
    """Return the samples in the next chunk from an offset, and the offset after its last line.

    An extra sample tells the server if some lines have figures that are not numbers.
    """
    # 1. Read whole lines. A line that is longer than a chunk is not of the library, and skipped.
    chunk = runtime.read(run, PROGRESS, offset, CHUNK)
    end = chunk.rfind(b"\n") + 1
    if end == 0:
        is_too_long = len(chunk) == CHUNK
        return (), offset + CHUNK if is_too_long else offset

    # 2. Turn them into samples.
    samples = []
    has_bad_figures = False
    for report in _reports_in(chunk[:end]):
        sample = sample_of(report)
        if sample:
            samples.append(_with_setup(runtime, run, sample))
        if _has_bad_figures(report):
            has_bad_figures = True
    if has_bad_figures:
        samples.append(ProgressSample(0.0, NOT_NUMBERS, 0, 0, 0.0))
    return tuple(samples), offset + end


def _reports_in(chunk: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in lines of progress; other lines are skipped."""
    for line in chunk.splitlines():
        if b"{" not in line:  # cheaper than parsing: a job may write many blank lines
            continue
        report = parse_object(line)
        if report:
            yield report


def _with_setup(runtime: Runtime, run: RunId, sample: ProgressSample) -> ProgressSample:
    """Return a sample with the set-up time since the launch, of which the job does not know."""
    if sample.setup_s is None:
        return sample
    started_at_s = runtime.started_at_s(run)
    if started_at_s is None:
        return sample
    return replace(sample, setup_s=max(sample.setup_s, sample.at_s - started_at_s))


def standing(runtime: Runtime, run: RunId) -> Standing:
    """Return the state of a run by the last lines of its progress."""
    size = runtime.size(run, PROGRESS)
    chunk = runtime.read(run, PROGRESS, max(0, size - CHUNK), CHUNK)
    last = Standing()
    for report in _reports_in(chunk):
        reason = str(report.get("reason") or "")
        if report.get("event") == FELL:
            last = replace(last, left=False, fell=reason or "its gang fell apart")
            continue
        sample = sample_of(report)
        if sample:
            has_left = sample.event == "preempted"
            last = Standing(sample.step, has_left, reason, last.fell)
    return last


def sample_of(report: dict[str, Any]) -> ProgressSample | None:
    """Return the sample in a line of progress; None if it lacks a field that it must have."""
    event = report.get("event")
    at_s = _number(report.get("at_s"))
    step = _count(report.get("step"))
    launch_steps = _count(report.get("launch_steps", 0))
    if not _is_event(event) or at_s is None or step is None or launch_steps is None:
        return None
    names = ("steps_per_s", "loss", "overrun_fraction", "setup_s")
    optional = {name: _number(report.get(name)) for name in names}
    elapsed_s = _number(report.get("elapsed_s")) or 0.0
    return ProgressSample(at_s, str(event), step, launch_steps, elapsed_s, **optional)


def _has_bad_figures(report: dict[str, Any]) -> bool:
    """Return True if a report has a figure that is not a number; its loss may be anything."""
    if not _is_event(report.get("event")):
        return False
    for name in ("elapsed_s", "steps_per_s", "overrun_fraction", "setup_s"):
        value = report.get(name)
        if value is not None and _number(value) is None:
            return True
    return sample_of(report) is None


def _is_event(value: object) -> bool:
    return isinstance(value, str) and value in EVENTS


def _count(value: object) -> int | None:
    """Return a whole number from 0 to 2^63 - 1; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 2**63 else None


def _number(value: object) -> float | None:
    """Return a finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
