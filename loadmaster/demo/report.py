"""The demo's report: every claim is computed from the facts in its file."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

REPORT_VERSION = 2
LARGEST_MEDIAN_ERROR = 0.13
"""Largest median relative error of run times by measured speeds (ANDREAS' validation: 13%)."""

LARGEST_ESTIMATE_ERROR = 0.3
"""The same by estimated speeds: no launch of the kind had run on as many GPUs of the type."""

MOST_STOPS = 8
SHORTEST_LAUNCH_S = 5.0

Facts = Mapping[str, Any]


class ReportError(Exception):
    """The file is no report of this version; the message says what is wrong with it."""


def check_report(path: Path | str) -> list[str]:
    """Promises that the report at `path` breaks, a sentence each. Raises ReportError."""
    return broken_promises(read_report(path)["jobs"])


def check_timing(path: Path | str) -> list[str]:
    """Figures of the report at `path` that a busy machine spoils. Raises ReportError."""
    return spoiled_figures(read_report(path)["jobs"])


def broken_promises(jobs: Sequence[Facts]) -> list[str]:
    """Return the promises that do not hold, whatever the machine did beside."""
    checks = (
        _unfinished(jobs),
        _losses_that_did_not_fall(jobs),
        [] if resumptions(jobs) else ["no job was pre-empted or migrated and resumed"],
        _lost_steps(jobs),
        _without_predictions(jobs),
        _held_twice(jobs),
    )
    return [failure for check in checks for failure in check]


def spoiled_figures(jobs: Sequence[Facts]) -> list[str]:
    """Return the figures that are worse than on a quiet machine: errors of run times, stops."""
    return [*_errors(jobs), *_many_stops(jobs), *_short_launches(jobs)]


def read_report(path: Path | str) -> dict[str, Any]:
    """The report's content; ReportError when it cannot be read or is of another version."""
    try:
        report = json.loads(Path(path).read_text())
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ReportError(f"{path} is not JSON: {error}") from error
    if not isinstance(report, dict) or report.get("version") != REPORT_VERSION:
        raise ReportError(f"{path} is no demo report of version {REPORT_VERSION}")
    if not isinstance(report.get("jobs"), list) or not report["jobs"]:
        raise ReportError(f"{path} holds no jobs")
    return report


def run_time_errors(jobs: Sequence[Facts], *, estimated: bool = False) -> list[float]:
    """|predicted - measured| / measured run time of launches with steps.

    Of those on a configuration that a launch of the kind had tried before; `estimated`: the others.
    """
    tried = [
        (_configuration(job, p), p["from_s"])
        for job in jobs
        for p in (*_with_steps(job["placements"]), *_with_steps(job.get("profile_runs", ())))
    ]
    return [
        abs(p["predicted_run_s"] - p["measured_run_s"]) / p["measured_run_s"]
        for job in jobs
        for p in _with_steps(job["placements"])
        if p["predicted_run_s"] is not None and p["measured_run_s"]
        if estimated
        != any(at == _configuration(job, p) and from_s < p["from_s"] for at, from_s in tried)
    ]


def _with_steps(launches: Iterable[Facts]) -> list[Facts]:
    return [p for p in launches if p["end_steps"] > p["start_steps"]]


def _configuration(job: Facts, placement: Facts) -> tuple[str, str, int]:
    return job["kind"], placement["gpu_type"], placement["gpus"]


def resumptions(jobs: Iterable[Facts]) -> list[tuple[Facts, Facts]]:
    """Pairs (stopped before its end, went on later) of the same job."""
    pairs = (pair for job in jobs for pair in pairwise(_worked(job)))
    return [
        (before, after)
        for before, after in pairs
        if before["outcome"] == "preempted" and before["end_steps"] > 0
    ]


def stops(jobs: Iterable[Facts]) -> list[Facts]:
    """Launches that were pre-empted, to wait or to go on elsewhere."""
    return [p for job in jobs for p in _held(job) if p["outcome"] == "preempted"]


def is_forced(stopped: Facts, jobs: Iterable[Facts]) -> bool:
    """Return True if a job of higher priority, or equal with a due date, got its GPUs next."""
    owner = next(job for job in jobs if stopped in job["placements"])
    devices = {slot["device"] for slot in stopped["slots"]}
    later = [
        (p["from_s"], job)
        for job in jobs
        for p in _held(job)
        if p["from_s"] >= stopped["to_s"] and devices & {slot["device"] for slot in p["slots"]}
    ]
    following = min(later, key=lambda of: of[0], default=(0.0, owner))[1]
    higher = following["priority"] > owner["priority"]
    due = following["priority"] == owner["priority"] and following["due_s"] is not None
    return following is not owner and (higher or due)


def shortest_unforced_s(job: Facts, jobs: Sequence[Facts]) -> float | None:
    """Length of the job's shortest launch that was stopped and not forced to; None without one."""
    chosen = (p for p in stops([job]) if not is_forced(p, jobs))
    return min((p["to_s"] - p["from_s"] for p in chosen), default=None)


def forecasts(jobs: Iterable[Facts]) -> list[tuple[float, float, float]]:
    """(low, actual, high) start of every job with a forecast that has started."""
    told = ((job["forecast"], job["started_s"]) for job in jobs if job["forecast"])
    return [
        (f["low_s"], at_s, f["high_s"])
        for f, at_s in told
        if at_s is not None and f["low_s"] is not None and f["high_s"] is not None
    ]


def _held(job: Facts) -> list[Facts]:
    return [p for p in job["placements"] if p["from_s"] is not None]


def _worked(job: Facts) -> list[Facts]:
    """Launches by fence, without withdrawn offers and ones without a step."""
    launches = sorted(_held(job), key=lambda p: p["fence"])
    return [p for p in launches if not _stopped_early(p)]


def _stopped_early(placement: Facts) -> bool:
    nothing_done = placement["end_steps"] == placement["start_steps"]
    was_stopped = placement["outcome"] in ("preempted", "failed", "lost")
    return placement["resumed_at_step"] is None and nothing_done and was_stopped


def _unfinished(jobs: Iterable[Facts]) -> list[str]:
    left = (job for job in jobs if job["state"] != "completed")
    return [f"{job['name']} is {job['state']}, not completed" for job in left]


def _losses_that_did_not_fall(jobs: Iterable[Facts]) -> list[str]:
    losses = [(job["name"], job["first_loss"], job["final_loss"]) for job in jobs]
    return [
        f"{name}: the loss did not fall ({first} to {final})"
        for name, first, final in losses
        if first is None or final is None or not final < first
    ]


def _lost_steps(jobs: Iterable[Facts]) -> list[str]:
    return [
        f"fence {after['fence']} resumed at step {after['resumed_at_step']}, "
        f"before the checkpoint of step {before['checkpoint_steps']}"
        for before, after in resumptions(jobs)
        if after["resumed_at_step"] is None or after["resumed_at_step"] < before["checkpoint_steps"]
    ]


def _without_predictions(jobs: Sequence[Facts]) -> list[str]:
    if run_time_errors(jobs) or run_time_errors(jobs, estimated=True):
        return []
    return ["no placement has both a predicted and a measured run time"]


def _errors(jobs: Sequence[Facts]) -> list[str]:
    limits = (
        (run_time_errors(jobs), LARGEST_MEDIAN_ERROR, "measured"),
        (run_time_errors(jobs, estimated=True), LARGEST_ESTIMATE_ERROR, "estimated"),
    )
    return [
        f"median error of predicted run times is {median(errors):.1%} by {source} speeds of"
        f" {len(errors)} launches, over {limit:.0%}"
        for errors, limit, source in limits
        if errors and median(errors) > limit
    ]


def _many_stops(jobs: Iterable[Facts]) -> list[str]:
    found = len(stops(jobs))
    if found <= MOST_STOPS:
        return []
    return [f"launches were stopped {found} times, over {MOST_STOPS}"]


def _short_launches(jobs: Sequence[Facts]) -> list[str]:
    found = [(job["name"], shortest_unforced_s(job, jobs)) for job in jobs]
    return [
        f"the stopped launch of {name} ran for {length_s:.1f} s, under {SHORTEST_LAUNCH_S:g} s, and"
        " no job of higher priority, or due, followed it"
        for name, length_s in found
        if length_s is not None and length_s < SHORTEST_LAUNCH_S
    ]


def _held_twice(jobs: Iterable[Facts]) -> list[str]:
    held: defaultdict[tuple[str, int], list[tuple[float, float, str]]] = defaultdict(list)
    for job in jobs:
        for p in (*job["placements"], *job.get("profile_runs", ())):
            for slot in p["slots"] if p["from_s"] is not None else ():
                held[slot["device"], slot["slot"]].append(
                    (p["from_s"], p["to_s"], f"{job['name']} (fence {p['fence']})")
                )
    return [
        f"device {device} slot {slot} was held by {first[2]} and {second[2]} at once"
        for (device, slot), intervals in held.items()
        for first, second in pairwise(sorted(intervals))
        if second[0] < first[1]
    ]
