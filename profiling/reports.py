"""Progress reports that make no sense: dropped, with a message for the job's history. Pure.

A job may say anything. What is left has steps that never fall, at most FASTEST steps a second, and
times that are near the server's; whatever else is in the same batch stays.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from loadmaster.samples import NOT_NUMBERS, ProgressSample

FASTEST = 1e6
"""Steps/s beyond which a report is nonsense."""

CLOCK_S = 60.0
"""Seconds by which a job's clock may be ahead of the server's, fall behind its own past, or run
ahead of its launch."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Newest report of a launch that was kept."""

    at_s: float
    step: int
    launch_steps: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch and the server's time: accepted then, begun at this step, reported so far.

    `first_s`: time of its first report.
    """

    now_s: float
    accepted_s: float | None
    start_steps: int = 0
    last: Reached | None = None
    first_s: float | None = None


@dataclass(slots=True)
class Checked:
    """Reports that make sense, and a message for each sort of nonsense, by its name."""

    samples: list[ProgressSample] = field(default_factory=list)
    messages: dict[str, str] = field(default_factory=dict)


def check(samples: Iterable[ProgressSample], launch: Launch) -> Checked:
    """Drop what makes no sense after what the launch has reported."""
    checked, last, first_s = Checked(), launch.last, launch.first_s
    for told in samples:
        if told.event == NOT_NUMBERS:
            said = "reported steps or times that are no numbers (NaN, infinite): not counted"
            checked.messages.setdefault(NOT_NUMBERS, said)
            continue
        timely = _in_time(told, last, launch, first_s, checked)
        sample = _with_values(timely, launch, checked)
        repeated = last is not None and _is_repeated(sample, last)
        problem = _impossible(sample)
        if problem is None and not repeated:
            problem = _backwards_or_too_fast(sample, last, launch.start_steps)
        if problem is not None:
            checked.messages.setdefault(*problem)
            continue
        checked.samples.append(sample)
        first_s = sample.at_s if first_s is None else first_s
        if not repeated:
            last = Reached(sample.at_s, sample.step, sample.launch_steps, sample.elapsed_s)
    return checked


def _is_repeated(sample: ProgressSample, last: Reached) -> bool:
    """Return True for a report that a new session of the agent has sent again."""
    older = sample.step <= last.step and sample.launch_steps <= last.launch_steps
    return older and sample.at_s <= last.at_s


def _in_time(
    sample: ProgressSample,
    last: Reached | None,
    launch: Launch,
    first_s: float | None,
    checked: Checked,
) -> ProgressSample:
    """Return the report at the server's time if the job's clock has jumped.

    A launch that reports more seconds than it has had would be kept as more points.
    """
    latest_s = launch.now_s + CLOCK_S
    if first_s is not None and launch.accepted_s is not None:
        had_s = max(0.0, launch.now_s - launch.accepted_s)
        latest_s = min(latest_s, first_s + had_s + CLOCK_S)
    new = last is not None and sample.launch_steps > last.launch_steps
    back = new and last is not None and sample.at_s < last.at_s - CLOCK_S
    if not back and 0.0 <= sample.at_s <= latest_s:
        return sample
    checked.messages.setdefault(
        "clock", "the clock of its progress reports jumped; the server's time is used"
    )
    return replace(sample, at_s=launch.now_s)


def _with_values(sample: ProgressSample, launch: Launch, checked: Checked) -> ProgressSample:
    """Return the report without figures that cannot be."""
    speed, setup_s = sample.steps_per_s, sample.setup_s
    if speed is not None and not 0.0 < speed <= FASTEST and (sample.launch_steps or speed):
        said = f"reported {speed:g} steps/s, which cannot be: not counted"
        checked.messages.setdefault("speed", said)
        sample = replace(sample, steps_per_s=None)
    longest_s = CLOCK_S + launch.now_s - (launch.accepted_s or 0.0)
    if setup_s is not None and not 0.0 <= setup_s <= longest_s:
        said = f"reported a start of {setup_s:g} s, longer than its launch: not counted"
        checked.messages.setdefault("setup", said)
        sample = replace(sample, setup_s=None)
    late = sample.overrun_fraction
    if late is not None and not 0.0 <= late <= 1.0:
        said = f"reported {late:g} as the fraction of late steps: not counted"
        checked.messages.setdefault("overrun", said)
        sample = replace(sample, overrun_fraction=None)
    return sample


def _impossible(sample: ProgressSample) -> tuple[str, str] | None:
    """Return (name, message) of counts and times that no launch has."""
    if min(sample.step, sample.launch_steps) >= 0 and 0.0 <= sample.elapsed_s < inf:
        return None
    return "negative", f"reported {sample.step} steps after {sample.elapsed_s:g} s: not counted"


def _backwards_or_too_fast(
    sample: ProgressSample, last: Reached | None, start_steps: int
) -> tuple[str, str] | None:
    """Return (name, message) of a report that cannot follow the last one."""
    before = last or Reached(sample.at_s, min(sample.step, start_steps), 0, 0.0)
    if sample.step < before.step or sample.launch_steps < before.launch_steps:
        return "back", f"its steps went back from {before.step} to {sample.step}: not counted"
    if sample.elapsed_s < before.elapsed_s:
        said = f"its time went back from {before.elapsed_s:g} to {sample.elapsed_s:g} s"
        return "elapsed", f"{said}: reports are not counted until it is past that"
    taken_s = max(1.0, sample.elapsed_s - before.elapsed_s, sample.at_s - before.at_s)
    made = max(sample.step - before.step, sample.launch_steps - before.launch_steps)
    if made > FASTEST * taken_s:
        return "jump", f"reported {made:g} steps in {taken_s:.3g} s, which cannot be: not counted"
    return None
