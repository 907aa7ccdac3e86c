"""Launches in a report of the demo: predicted run times, resumptions, stops, and starts."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple, NotRequired, TypedDict


class Slot(TypedDict):
    """Slot of a device that a launch held."""

    device: str
    slot: int


class Launch(TypedDict):
    """Launch of a job; times in seconds from the start of the demo.

    `from_s` is None of an offer that was withdrawn; `resumed_at_step` of a launch without a step.
    """

    fence: int
    gpu_type: str
    gpus: int
    from_s: float | None
    to_s: float
    slots: list[Slot]
    outcome: str
    start_steps: int
    resumed_at_step: int | None
    end_steps: int
    checkpoint_steps: int
    predicted_run_s: float | None
    measured_run_s: float | None


class Forecast(TypedDict):
    """Interval of the start that was forecast at first."""

    low_s: float | None
    high_s: float | None


class ReportedJob(TypedDict):
    """Job with its launches; `due_s` is None without a due date."""

    name: str
    kind: str
    state: str
    priority: int
    due_s: float | None
    started_s: float | None
    first_loss: float | None
    final_loss: float | None
    forecast: Forecast | None
    placements: list[Launch]
    profile_runs: NotRequired[list[Launch]]


class Hold(NamedTuple):
    """Time in which a launch held its slots, in seconds."""

    from_s: float
    to_s: float
    launch: Launch


class ForecastStart(NamedTuple):
    """Start of a job, and the interval in which it was forecast, in seconds."""

    low_s: float
    actual_s: float
    high_s: float


Configuration = tuple[str, str, int]
"""Kind, GPU type and number of GPUs of a launch."""


def holds(launches: Iterable[Launch]) -> Iterator[Hold]:
    """Yield when each launch held its slots, without offers that were withdrawn."""
    for launch in launches:
        if launch["from_s"] is not None:
            yield Hold(launch["from_s"], launch["to_s"], launch)


def run_time_errors(jobs: Sequence[ReportedJob], *, estimated: bool = False) -> list[float]:
    """Return |predicted - measured| / measured run time of launches that made steps.

    Of those on a configuration that an earlier launch of the kind had tried, so that its speed was
    measured; `estimated`: of the others.
    """
    # 1. The first try of each configuration, by a job or a profile run.
    first_tries_s: dict[Configuration, float] = {}
    for job in jobs:
        for hold in holds([*job["placements"], *job.get("profile_runs", ())]):
            if _made_steps(hold.launch):
                tried = _configuration(job, hold.launch)
                first_tries_s[tried] = min(hold.from_s, first_tries_s.get(tried, inf))

    # 2. The errors of launches with a predicted and a measured run time.
    errors = []
    for job in jobs:
        for hold in holds(job["placements"]):
            predicted_s = hold.launch["predicted_run_s"]
            measured_s = hold.launch["measured_run_s"]
            if not _made_steps(hold.launch) or predicted_s is None or not measured_s:
                continue
            was_measured = first_tries_s[_configuration(job, hold.launch)] < hold.from_s
            if was_measured != estimated:
                errors.append(abs(predicted_s - measured_s) / measured_s)
    return errors


def _made_steps(launch: Launch) -> bool:
    return launch["end_steps"] > launch["start_steps"]


def _configuration(job: ReportedJob, launch: Launch) -> Configuration:
    return job["kind"], launch["gpu_type"], launch["gpus"]


def resumptions(jobs: Iterable[ReportedJob]) -> list[tuple[Launch, Launch]]:
    """Return pairs of launches of a job: one that was pre-empted, and the one that went on."""
    pairs = []
    for job in jobs:
        worked = [hold.launch for hold in holds(job["placements"]) if _has_worked(hold.launch)]
        worked.sort(key=lambda launch: launch["fence"])
        for before, after in pairwise(worked):
            if before["outcome"] == "preempted" and before["end_steps"] > 0:
                pairs.append((before, after))
    return pairs


def _has_worked(launch: Launch) -> bool:
    """Return False for a launch that was stopped before its first step."""
    was_stopped = launch["outcome"] in ("preempted", "failed", "lost")
    return launch["resumed_at_step"] is not None or _made_steps(launch) or not was_stopped


def stops(jobs: Iterable[ReportedJob]) -> list[Launch]:
    """Return the launches that were pre-empted, to wait or to go on elsewhere."""
    stopped = []
    for job in jobs:
        for hold in holds(job["placements"]):
            if hold.launch["outcome"] == "preempted":
                stopped.append(hold.launch)
    return stopped


def shortest_unforced_s(job: ReportedJob, jobs: Sequence[ReportedJob]) -> float | None:
    """Return the length in seconds of the job's shortest launch that was stopped without need.

    None if no launch was stopped, or each had to make way (`_is_forced`).
    """
    lengths_s = []
    for hold in holds(job["placements"]):
        if hold.launch["outcome"] == "preempted" and not _is_forced(hold, job, jobs):
            lengths_s.append(hold.to_s - hold.from_s)
    return min(lengths_s, default=None)


def _is_forced(stopped: Hold, owner: ReportedJob, jobs: Sequence[ReportedJob]) -> bool:
    """Return True if a job of higher priority, or equal with a due date, got its GPUs next."""
    # 1. Find the job with the next launch on any of its devices.
    devices = {slot["device"] for slot in stopped.launch["slots"]}
    next_from_s = inf
    next_job = owner
    for job in jobs:
        for hold in holds(job["placements"]):
            shared = devices & {slot["device"] for slot in hold.launch["slots"]}
            if shared and stopped.to_s <= hold.from_s < next_from_s:
                next_from_s = hold.from_s
                next_job = job

    # 2. Compare that job with the one that was stopped.
    if next_job is owner:
        return False
    if next_job["priority"] == owner["priority"]:
        return next_job["due_s"] is not None
    return next_job["priority"] > owner["priority"]


def forecasts(jobs: Iterable[ReportedJob]) -> list[ForecastStart]:
    """Return the start of every job with a forecast that has started."""
    starts = []
    for job in jobs:
        forecast = job["forecast"]
        actual_s = job["started_s"]
        if forecast is None or actual_s is None:
            continue
        low_s = forecast["low_s"]
        high_s = forecast["high_s"]
        if low_s is not None and high_s is not None:
            starts.append(ForecastStart(low_s, actual_s, high_s))
    return starts
