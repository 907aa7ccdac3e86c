"""Checks of progress reports: impossible ones are dropped, with a message to the job. Pure.

A job may report anything. In the reports that are kept, steps never fall, there are at most FASTEST
steps a second, and times are near the server's. A wrong report does not affect others of its batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from loadmaster.samples import NOT_NUMBERS, ProgressSample

FASTEST = 1e6
"""Steps/s beyond which a report is nonsense."""

CLOCK_S = 60.0
"""Tolerance in seconds of a job's clock: ahead of the server's, behind an earlier report, and ahead
of the age of its launch."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Progress of a launch by its newest report that was kept."""

    at_s: float
    step: int
    launch_steps: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch that reports, and the server's time.

    `start_steps`: step at which it began. `last`: its progress until now. `first_s`: time of its
    first report.
    """

    now_s: float
    accepted_s: float | None
    start_steps: int = 0
    last: Reached | None = None
    first_s: float | None = None


@dataclass(slots=True)
class Checked:
    """Reports that are kept, and a message for each sort of fault, by the fault's name."""

    samples: list[ProgressSample] = field(default_factory=list)
    messages: dict[str, str] = field(default_factory=dict)


def check(samples: Iterable[ProgressSample], launch: Launch) -> Checked:
    """Check the reports of a batch, in their order; drop those that cannot be true."""
    checked = Checked()
    last = launch.last
    first_s = launch.first_s
    for reported in samples:
        # 1. Correct its time, and leave out figures that cannot be.
        if reported.event == NOT_NUMBERS:
            message = "reported steps or times that are no numbers (NaN, infinite): not counted"
            checked.messages.setdefault(NOT_NUMBERS, message)
            continue
        in_time = _with_plausible_time(reported, last, launch, first_s, checked)
        sample = _with_plausible_figures(in_time, launch, checked)

        # 2. Drop it if its steps cannot be. A repeated one need not follow the last one.
        is_repeated = last is not None and _is_repeated(sample, last)
        problem = _impossible(sample)
        if problem is None and not is_repeated:
            problem = _backwards_or_too_fast(sample, last, launch.start_steps)
        if problem is not None:
            name, message = problem
            checked.messages.setdefault(name, message)
            continue

        # 3. Keep it.
        checked.samples.append(sample)
        if first_s is None:
            first_s = sample.at_s
        if not is_repeated:
            last = Reached(sample.at_s, sample.step, sample.launch_steps, sample.elapsed_s)
    return checked


def _is_repeated(sample: ProgressSample, last: Reached) -> bool:
    """Return True for a report that a new session of the agent has sent again."""
    has_no_more_steps = sample.step <= last.step and sample.launch_steps <= last.launch_steps
    return has_no_more_steps and sample.at_s <= last.at_s


def _with_plausible_time(
    sample: ProgressSample,
    last: Reached | None,
    launch: Launch,
    first_s: float | None,
    checked: Checked,
) -> ProgressSample:
    """Return the report, with the server's time if the job's clock has jumped."""
    # 1. It may not be later than now, nor further from the first report than the launch's age.
    latest_s = launch.now_s + CLOCK_S
    if first_s is not None and launch.accepted_s is not None:
        age_s = max(0.0, launch.now_s - launch.accepted_s)
        latest_s = min(latest_s, first_s + age_s + CLOCK_S)

    # 2. One with more steps may not be earlier than the last one.
    went_back = False
    if last is not None and sample.launch_steps > last.launch_steps:
        went_back = sample.at_s < last.at_s - CLOCK_S
    if not went_back and 0.0 <= sample.at_s <= latest_s:
        return sample
    checked.messages.setdefault(
        "clock", "the clock of its progress reports jumped; the server's time is used"
    )
    return replace(sample, at_s=launch.now_s)


def _with_plausible_figures(
    sample: ProgressSample, launch: Launch, checked: Checked
) -> ProgressSample:
    """Return the report with None in place of figures that cannot be."""
    # 1. Its speed, which is 0 before the first step.
    speed = sample.steps_per_s
    if speed is not None and not 0.0 < speed <= FASTEST and (sample.launch_steps or speed):
        message = f"reported {speed:g} steps/s, which cannot be: not counted"
        checked.messages.setdefault("speed", message)
        sample = replace(sample, steps_per_s=None)

    # 2. The time to its first step.
    setup_s = sample.setup_s
    longest_s = CLOCK_S + launch.now_s - (launch.accepted_s or 0.0)
    if setup_s is not None and not 0.0 <= setup_s <= longest_s:
        message = f"reported a start of {setup_s:g} s, longer than its launch: not counted"
        checked.messages.setdefault("setup", message)
        sample = replace(sample, setup_s=None)

    # 3. The late steps of an emulated device.
    late = sample.overrun_fraction
    if late is not None and not 0.0 <= late <= 1.0:
        message = f"reported {late:g} as the fraction of late steps: not counted"
        checked.messages.setdefault("overrun", message)
        sample = replace(sample, overrun_fraction=None)
    return sample


def _impossible(sample: ProgressSample) -> tuple[str, str] | None:
    """Return the fault (name, message) of negative counts and times; None without one."""
    if min(sample.step, sample.launch_steps) >= 0 and 0.0 <= sample.elapsed_s < inf:
        return None
    return "negative", f"reported {sample.step} steps after {sample.elapsed_s:g} s: not counted"


def _backwards_or_too_fast(
    sample: ProgressSample, last: Reached | None, start_steps: int
) -> tuple[str, str] | None:
    """Return the fault (name, message) of a report that cannot follow the last; None without."""
    before = last or Reached(sample.at_s, min(sample.step, start_steps), 0, 0.0)
    if sample.step < before.step or sample.launch_steps < before.launch_steps:
        return "back", f"its steps went back from {before.step} to {sample.step}: not counted"
    if sample.elapsed_s < before.elapsed_s:
        fault = f"its time went back from {before.elapsed_s:g} to {sample.elapsed_s:g} s"
        return "elapsed", f"{fault}: reports are not counted until it is past that"
    taken_s = max(1.0, sample.elapsed_s - before.elapsed_s, sample.at_s - before.at_s)
    steps = max(sample.step - before.step, sample.launch_steps - before.launch_steps)
    if steps > FASTEST * taken_s:
        return "jump", f"reported {steps:g} steps in {taken_s:.3g} s, which cannot be: not counted"
    return None
