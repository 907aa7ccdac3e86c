"""Report of the demo, as checked by `loadmaster.demo.report`, and its summary in words."""

import os
import platform
from collections.abc import Mapping
from datetime import datetime
from statistics import median
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from rich.console import Console
from rich.table import Table

from clusters.models import Cluster
from controlplane.loop.models import Round
from jobs.assignment_lifecycle import ENDED
from jobs.models import Assignment, Job
from loadmaster.demo.launches import (
    forecasts,
    resumptions,
    run_time_errors,
    shortest_unforced_s,
    stops,
)
from loadmaster.demo.report import REPORT_VERSION
from loadmaster.protocol import AssignmentState


def report(cluster: Cluster, jobs: QuerySet[Job], started_at: datetime) -> dict[str, Any]:
    """Report of these jobs; times in seconds from `started_at`, money in the cluster's currency."""
    rows = [_job(job, started_at) for job in jobs.order_by("submitted_at")]
    rounds = Round.objects.filter(cluster=cluster, started_at__gte=started_at)
    return {
        "version": REPORT_VERSION,
        "generated_at": timezone.now().isoformat(),
        "machine": {
            "cores": os.cpu_count(),
            "load": os.getloadavg()[1],
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "emulated": True,
        "note": (
            "GPUs are emulated by pacing clocks around real training steps; power is modelled, not"
            " measured."
        ),
        "currency": cluster.currency,
        "policy": cluster.policy,
        "runtimes": sorted({job.runtime for job in jobs}),
        "images": sorted({job.image for job in jobs if job.image}),
        "duration_s": _since(started_at, timezone.now()),
        "rounds": rounds.count(),
        "jobs": rows,
        "summary": _summary(rows, rounds),
    }


def _summary(jobs: list[Any], rounds: QuerySet[Round]) -> dict[str, Any]:
    """Totals over the jobs of the report."""
    # 1. All launches.
    placements: list[dict[str, Any]] = []
    profile_runs: list[dict[str, Any]] = []
    for job in jobs:
        placements += job["placements"]
        profile_runs += job["profile_runs"]
    predicted = [each for each in placements if each["predicted_energy_cost"] is not None]

    # 2. A stop after which the job went on elsewhere is a migration.
    migrations = 0
    for before, after in resumptions(jobs):
        if _devices_of(before) != _devices_of(after):
            migrations += 1

    # 3. Errors of the predictions, by measured and by estimated speeds.
    errors = run_time_errors(jobs)
    estimate_errors = run_time_errors(jobs, estimated=True)
    starts = forecasts(jobs)
    return {
        "completed": sum(job["state"] == "completed" for job in jobs),
        "due_met": sum(job["due_met"] for job in jobs),
        "preemptions": len(stops(jobs)) - migrations,
        "migrations": migrations,
        "rounds": rounds.count(),
        "forecasts": len(starts),
        "forecasts_inside": sum(low <= start <= high for low, start, high in starts),
        "profile_runs": len(profile_runs),
        "profiling_energy_kwh": _total(profile_runs, "energy_kwh"),
        "profiling_energy_cost": _total(profile_runs, "energy_cost"),
        "median_run_time_error": median(errors) if errors else None,
        "median_estimate_error": median(estimate_errors) if estimate_errors else None,
        "energy_kwh": _total(placements, "energy_kwh"),
        "energy_cost_predicted": _total(predicted, "predicted_energy_cost"),
        "energy_cost_of_predicted": _total(predicted, "energy_cost"),
        "energy_cost": _total(placements, "energy_cost"),
        "tardiness_cost": sum(job["tardiness_cost"] for job in jobs),
    }


def _devices_of(placement: Mapping[str, Any]) -> list[str]:
    return [slot["device"] for slot in placement["slots"]]


def _total(placements: list[dict[str, Any]], name: str) -> float:
    """Sum of a figure over placements; one that is not known counts as 0."""
    return sum(placement[name] or 0.0 for placement in placements)


def _job(job: Job, started_at: datetime) -> dict[str, Any]:
    """A job in the report, with its launches by purpose."""
    launches: dict[str, list[dict[str, Any]]] = {"training": [], "profiling": []}
    assignments = job.assignments.select_related("node__gpu_type", "node__cluster")
    for assignment in assignments.prefetch_related("slots__device", "progress").order_by("fence"):
        launches[assignment.purpose].append(_placement(assignment, started_at))
    events = []
    for event in job.events.all():
        events.append(
            {
                "event": event.event,
                "from": event.from_state,
                "to": event.to_state,
                "at_s": _since(started_at, event.at),
            }
        )
    end = job.completed_at or timezone.now()
    tardiness_s = max(0.0, (end - job.due_at).total_seconds()) if job.due_at else 0.0
    return {
        "id": str(job.pk),
        "name": job.name,
        "kind": job.kind.name,
        "state": job.state,
        "steps": job.total_steps,
        "priority": job.priority,
        "submitted_s": _since(started_at, job.submitted_at),
        "started_s": _since(started_at, job.started_at),
        "forecast": _forecast(job, started_at),
        "due_s": _since(started_at, job.due_at),
        "completed_s": _since(started_at, job.completed_at),
        "due_met": job.state == "completed" and tardiness_s == 0.0,
        "tardiness_s": tardiness_s,
        "tardiness_cost": tardiness_s * job.tardiness_weight,
        "first_loss": job.first_loss,
        "final_loss": job.last_loss,
        "events": events,
        "placements": launches["training"],
        "profile_runs": launches["profiling"],
    }


def _forecast(job: Job, started_at: datetime) -> dict[str, float | None] | None:
    """First forecast of the job's start, with its 80% interval; None if it was given none."""
    first = job.forecasts.filter(first=True).first()
    if first is None:
        return None
    return {
        "made_s": _since(started_at, first.made_at),
        "low_s": _since(started_at, first.low_at),
        "start_s": _since(started_at, first.start_at),
        "high_s": _since(started_at, first.high_at),
    }


def _placement(assignment: Assignment, started_at: datetime) -> dict[str, Any]:
    """Launch in the report: it holds slots from acceptance; withdrawn offers have no `from_s`."""
    # Predictions are of the whole of the job's rest; a launch may have done a part of it.
    part = _part_done(assignment)
    predicted_cost = _number(assignment.predicted_energy_cost)
    slots = [{"device": s.device.uuid, "slot": s.slot} for s in assignment.slots.all()]
    has_ended = AssignmentState(assignment.state) in ENDED
    first_points = list(assignment.progress.all())[:1]
    resumed_at_step = None
    if first_points:
        resumed_at_step = first_points[0].step - first_points[0].launch_steps
    return {
        "fence": assignment.fence,
        "node": assignment.node.name,
        "gpu_type": assignment.node.type_name,
        "gpus": assignment.gpus,
        "slots": slots,
        "from_s": _since(started_at, assignment.accepted_at),
        "to_s": _since(started_at, assignment.ended_at or timezone.now()),
        "container": assignment.container,
        "outcome": assignment.state if has_ended else "unfinished",
        "reason": assignment.reason,
        "start_steps": assignment.start_steps,
        "resumed_at_step": resumed_at_step,
        "end_steps": assignment.steps_done,
        "checkpoint_steps": assignment.checkpoint_steps,
        "setup_s": assignment.setup_s,
        "predicted_run_s": _part_of(assignment.predicted_run_s, part),
        "measured_run_s": _measured_s(assignment),
        "energy_kwh": assignment.energy_kwh,
        "predicted_energy_cost": _part_of(predicted_cost, part),
        "energy_cost": _number(assignment.energy_cost),
        "power_source": assignment.power_source,
    }


def _measured_s(assignment: Assignment) -> float | None:
    """Run time in seconds; None if it did not run, or has not ended."""
    if assignment.running_at is None or assignment.ended_at is None:
        return None
    return (assignment.ended_at - assignment.running_at).total_seconds()


def _part_done(assignment: Assignment) -> float | None:
    """Fraction of its predictions that a launch reached: 1 if it finished; None if unknown."""
    run_s = assignment.predicted_run_s
    planned_steps = assignment.job.total_steps - assignment.start_steps
    if not run_s or planned_steps <= 0:
        return None
    if assignment.state == AssignmentState.SUCCEEDED:
        return 1.0

    # The predicted time has a part without steps, for the set-up; the rest is in proportion.
    speed = assignment.predicted_steps_per_s
    setup_part = 0.0
    if speed and assignment.share == 1.0:
        setup_part = max(0.0, 1.0 - planned_steps / speed / run_s)
    steps = max(0, assignment.steps_done - assignment.start_steps)
    return setup_part + (1.0 - setup_part) * steps / planned_steps


def _part_of(predicted: float | None, part: float | None) -> float | None:
    """Part of a prediction; None if either is not known."""
    if predicted is None or part is None:
        return None
    return predicted * part


def _since(start: datetime, moment: datetime | None) -> float | None:
    """Seconds from `start` to a moment, in milliseconds; None for no moment."""
    return None if moment is None else round((moment - start).total_seconds(), 3)


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))


def print_summary(report: dict[str, Any], console: Console) -> None:
    """Print predictions and measurements per job and in total."""
    # 1. The tables.
    console.print(_job_table(report))
    console.print(_start_table(report))

    # 2. Outcomes.
    summary = report["summary"]
    console.print(
        f"{summary['completed']} of {len(report['jobs'])} jobs completed, {summary['due_met']} in"
        f" time; {summary['rounds']} rounds, {summary['preemptions']} pre-emptions,"
        f" {summary['migrations']} migrations; {summary['forecasts_inside']} of"
        f" {summary['forecasts']} starts within their forecast."
    )

    # 3. Profile runs, which are no part of the other figures.
    energy_kwh = summary["energy_kwh"] + summary["profiling_energy_kwh"]
    cost = summary["energy_cost"] + summary["profiling_energy_cost"]
    console.print(
        f"{summary['profile_runs']} profile runs with"
        f" {_percent(summary['profiling_energy_kwh'], energy_kwh)} of all energy,"
        f" {_percent(summary['profiling_energy_cost'], cost)} of its cost."
    )

    # 4. Energy and errors of predictions.
    currency = report["currency"]
    measured_error = _median_of(run_time_errors(report["jobs"]))
    estimated_error = _median_of(run_time_errors(report["jobs"], estimated=True))
    console.print(
        f"Energy: {summary['energy_kwh'] * 1000:.1f} Wh (modelled, as GPUs are emulated), billed"
        f" {summary['energy_cost']:.5f} {currency}. Launches with a prediction were billed"
        f" {summary['energy_cost_of_predicted']:.5f} {currency}; the prediction was"
        f" {summary['energy_cost_predicted']:.5f} {currency}. Tardiness cost"
        f" {summary['tardiness_cost']:.5f} {currency}."
    )
    console.print(
        f"Median error of predicted run times: {measured_error} by measured speeds,"
        f" {estimated_error} by estimated speeds."
    )


def _median_of(errors: list[float]) -> str:
    """Return the median error, with the number of launches behind it."""
    if not errors:
        return "unknown"
    return f"{median(errors):.1%} (of {len(errors)} launches)"


def _job_table(report: dict[str, Any]) -> Table:
    """Table of the jobs with predictions and measurements."""
    in_docker = "docker" in report.get("runtimes", ())
    form = "jobs in Docker containers" if in_docker else "jobs as processes"
    headings = (
        "job",
        "kind",
        "where",
        "launches",
        "due date",
        "loss",
        "run time predicted / measured (launches with a prediction)",
        "energy cost predicted / billed",
    )
    title = f"Demo report (emulated GPUs, {form})"
    table = Table(*headings, title=title, title_justify="left")
    for job in report["jobs"]:
        # Offers that were withdrawn are no launches.
        launches = [each for each in job["placements"] if each["from_s"] is not None]
        places = " > ".join(f"{each['gpus']}x{each['gpu_type']}" for each in launches)
        due_date = "met" if job["due_met"] else f"{job['tardiness_s']:.0f} s late"
        losses = f"{_short(job['first_loss'])} > {_short(job['final_loss'])}"
        run_times = _totals(launches, "predicted_run_s", "measured_run_s", ".1f")
        costs = _totals(launches, "predicted_energy_cost", "energy_cost", ".5f")
        table.add_row(
            job["name"],
            job["kind"],
            places,
            str(len(launches)),
            due_date,
            losses,
            f"{run_times} s",
            costs,
        )
    return table


def _totals(launches: list[dict[str, Any]], predicted: str, actual: str, form: str) -> str:
    """Totals of the launches with a prediction: "predicted / actual"; "- / actual" without any."""
    with_prediction = [each for each in launches if each[predicted] is not None]
    if not with_prediction:
        return f"- / {_total(launches, actual):{form}}"
    return f"{_total(with_prediction, predicted):{form}} / {_total(with_prediction, actual):{form}}"


def _start_table(report: dict[str, Any]) -> Table:
    """Table of forecast and actual starts, in seconds from the submission, and of stops."""
    headings = (
        "job",
        "forecast start (80% interval)",
        "started",
        "stops",
        "shortest stopped launch",
    )
    table = Table(*headings, title="Starts and stops, s after submission", title_justify="left")
    for job in report["jobs"]:
        forecast = "-"
        if job["forecast"]:
            start = _after(job, job["forecast"]["start_s"])
            low = _after(job, job["forecast"]["low_s"])
            high = _after(job, job["forecast"]["high_s"])
            forecast = f"{start} ({low} to {high})"
        shortest_s = shortest_unforced_s(job, report["jobs"])
        table.add_row(
            job["name"],
            forecast,
            _after(job, job["started_s"]),
            str(len(stops([job]))),
            "-" if shortest_s is None else f"{shortest_s:.1f} s",
        )
    return table


def _after(job: dict[str, Any], at_s: float | None) -> str:
    """Seconds from the job's submission; a dash for None."""
    return "-" if at_s is None else f"{at_s - job['submitted_s']:.1f}"


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "none"


def _short(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.3f}"
