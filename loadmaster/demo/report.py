"""Check of the demo's report: every promise is computed from the launches in its file."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from loadmaster.demo.launches import (
    ReportedJob,
    holds,
    resumptions,
    run_time_errors,
    shortest_unforced_s,
    stops,
)

REPORT_VERSION = 2

LARGEST_MEDIAN_ERROR = 0.13
"""Largest median relative error of run times by measured speeds (ANDREAS' validation: 13%)."""

LARGEST_ESTIMATE_ERROR = 0.3
"""The same by estimated speeds: no launch of the kind had run on as many GPUs of the type."""

MOST_STOPS = 8
"""Most launches that may be pre-empted in a demo."""

SHORTEST_LAUNCH_S = 5.0
"""Least length in seconds of a launch that is stopped without need."""


class ReportError(Exception):
    """Unreadable report, or one of another version; the message says what is wrong with it."""


def read_report(path: Path | str) -> dict[str, Any]:
    """Return the report's content; raise ReportError if it is no report of this version."""
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


def check_report(path: Path | str) -> list[str]:
    """Return the promises that the report at `path` breaks. Raises ReportError."""
    return broken_promises(read_report(path)["jobs"])


def check_timing(path: Path | str) -> list[str]:
    """Return the figures of the report at `path` that a busy machine spoils. Raises ReportError."""
    return spoiled_figures(read_report(path)["jobs"])


def broken_promises(jobs: Sequence[ReportedJob]) -> list[str]:
    """Return the promises that do not hold, whatever else the machine did, a sentence each."""
    failures = []

    # 1. Every job completes, and learns.
    for job in jobs:
        if job["state"] != "completed":
            failures.append(f"{job['name']} is {job['state']}, not completed")
    for job in jobs:
        first, final = job["first_loss"], job["final_loss"]
        if first is None or final is None or not final < first:
            failures.append(f"{job['name']}: the loss did not fall ({first} to {final})")

    # 2. At least one job is stopped and goes on, and none loses steps that were saved.
    resumed = resumptions(jobs)
    if not resumed:
        failures.append("no job was pre-empted or migrated and resumed")
    for before, after in resumed:
        step = after["resumed_at_step"]
        if step is None or step < before["checkpoint_steps"]:
            failures.append(
                f"fence {after['fence']} resumed at step {step},"
                f" before the checkpoint of step {before['checkpoint_steps']}"
            )

    # 3. Run times are predicted.
    if not run_time_errors(jobs) and not run_time_errors(jobs, estimated=True):
        failures.append("no placement has both a predicted and a measured run time")

    # 4. No two launches hold a slot at once.
    return [*failures, *_slots_held_twice(jobs)]


class _SlotHold(NamedTuple):
    """Time in seconds in which a launch held one slot, and the launch in words."""

    from_s: float
    to_s: float
    launch: str


def _slots_held_twice(jobs: Iterable[ReportedJob]) -> list[str]:
    """Return a sentence for each two launches that held a slot of a device at once."""
    by_slot: defaultdict[tuple[str, int], list[_SlotHold]] = defaultdict(list)
    for job in jobs:
        for hold in holds([*job["placements"], *job.get("profile_runs", ())]):
            launch = f"{job['name']} (fence {hold.launch['fence']})"
            for slot in hold.launch["slots"]:
                held = _SlotHold(hold.from_s, hold.to_s, launch)
                by_slot[slot["device"], slot["slot"]].append(held)

    failures = []
    for (device, slot_number), of_slot in by_slot.items():
        for first, second in pairwise(sorted(of_slot)):
            if second.from_s < first.to_s:
                failures.append(
                    f"device {device} slot {slot_number} was held by {first.launch}"
                    f" and {second.launch} at once"
                )
    return failures


def spoiled_figures(jobs: Sequence[ReportedJob]) -> list[str]:
    """Return the figures that are worse than on a quiet machine, a sentence each."""
    figures = []

    # 1. Errors of predicted run times.
    limits = (
        (run_time_errors(jobs), LARGEST_MEDIAN_ERROR, "measured"),
        (run_time_errors(jobs, estimated=True), LARGEST_ESTIMATE_ERROR, "estimated"),
    )
    for errors, limit, source in limits:
        if errors and median(errors) > limit:
            figures.append(
                f"median error of predicted run times is {median(errors):.1%} by {source} speeds"
                f" of {len(errors)} launches, over {limit:.0%}"
            )

    # 2. Many stops, and launches that were stopped soon without need.
    stop_count = len(stops(jobs))
    if stop_count > MOST_STOPS:
        figures.append(f"launches were stopped {stop_count} times, over {MOST_STOPS}")
    for job in jobs:
        length_s = shortest_unforced_s(job, jobs)
        if length_s is not None and length_s < SHORTEST_LAUNCH_S:
            figures.append(
                f"the stopped launch of {job['name']} ran for {length_s:.1f} s, under"
                f" {SHORTEST_LAUNCH_S:g} s, and no job of higher priority, or due, followed it"
            )
    return figures
