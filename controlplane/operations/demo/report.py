"""Report of the demo, as checked by `loadmaster.demo.report`, and its summary in words."""

import os
import platform
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
    placements = [p for job in jobs for p in job["placements"]]
    profiling = [p for job in jobs for p in job["profile_runs"]]
    told = [p for p in placements if p["predicted_energy_cost"] is not None]
    errors, guesses = run_time_errors(jobs), run_time_errors(jobs, estimated=True)
    moved = [
        True
        for before, after in resumptions(jobs)
        if [s["device"] for s in before["slots"]] != [s["device"] for s in after["slots"]]
    ]
    return {
        "completed": sum(job["state"] == "completed" for job in jobs),
        "due_met": sum(job["due_met"] for job in jobs),
        "preemptions": len(stops(jobs)) - len(moved),
        "migrations": len(moved),
        "rounds": rounds.count(),
        "forecasts": len(forecasts(jobs)),
        "forecasts_inside": sum(low <= at <= high for low, at, high in forecasts(jobs)),
        "profile_runs": len(profiling),
        "profiling_energy_kwh": _total(profiling, "energy_kwh"),
        "profiling_energy_cost": _total(profiling, "energy_cost"),
        "median_run_time_error": median(errors) if errors else None,
        "median_estimate_error": median(guesses) if guesses else None,
        "energy_kwh": _total(placements, "energy_kwh"),
        "energy_cost_predicted": _total(told, "predicted_energy_cost"),
        "energy_cost_of_predicted": _total(told, "energy_cost"),
        "energy_cost": _total(placements, "energy_cost"),
        "tardiness_cost": sum(job["tardiness_cost"] for job in jobs),
    }


def _total(placements: list[dict[str, Any]], name: str) -> float:
    return sum(p[name] or 0.0 for p in placements)


def _job(job: Job, started_at: datetime) -> dict[str, Any]:
    assignments = job.assignments.select_related("node__gpu_type", "node__cluster")
    launches: dict[str, list[dict[str, Any]]] = {"training": [], "profiling": []}
    for assignment in assignments.prefetch_related("slots__device", "progress").order_by("fence"):
        launches[assignment.purpose].append(_placement(assignment, started_at))
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
        "events": [
            {"event": e.event, "from": e.from_state, "to": e.to_state,
             "at_s": _since(started_at, e.at)}
            for e in job.events.all()
        ],
        "placements": launches["training"],
        "profile_runs": launches["profiling"],
    }  # fmt: skip


def _forecast(job: Job, started_at: datetime) -> dict[str, float | None] | None:
    """First forecast of the job's start, with its 80% interval; None if it was given none."""
    first = job.forecasts.filter(first=True).first()
    if first is None:
        return None
    told = ("made_at", "low_at", "start_at", "high_at")
    return {name.replace("_at", "_s"): _since(started_at, getattr(first, name)) for name in told}


def _placement(assignment: Assignment, started_at: datetime) -> dict[str, Any]:
    """Launch in the report: it holds slots from acceptance; withdrawn offers have no `from_s`."""
    did = _part_done(assignment)
    return {
        "fence": assignment.fence,
        "node": assignment.node.name,
        "gpu_type": assignment.node.type_name,
        "gpus": assignment.gpus,
        "slots": [{"device": s.device.uuid, "slot": s.slot} for s in assignment.slots.all()],
        "from_s": _since(started_at, assignment.accepted_at),
        "to_s": _since(started_at, assignment.ended_at or timezone.now()),
        "container": assignment.container,
        "outcome": assignment.state if AssignmentState(assignment.state) in ENDED else "unfinished",
        "reason": assignment.reason,
        "start_steps": assignment.start_steps,
        "resumed_at_step": next((p.step - p.launch_steps for p in assignment.progress.all()), None),
        "end_steps": assignment.steps_done,
        "checkpoint_steps": assignment.checkpoint_steps,
        "setup_s": assignment.setup_s,
        "predicted_run_s": _part(assignment.predicted_run_s, did),
        "measured_run_s": _measured_s(assignment),
        "energy_kwh": assignment.energy_kwh,
        "predicted_energy_cost": _part(_number(assignment.predicted_energy_cost), did),
        "energy_cost": _number(assignment.energy_cost),
        "power_source": assignment.power_source,
    }


def _measured_s(assignment: Assignment) -> float | None:
    if assignment.running_at is None or assignment.ended_at is None:
        return None
    return (assignment.ended_at - assignment.running_at).total_seconds()


def _part_done(assignment: Assignment) -> float | None:
    """Fraction of its predictions that a launch reached: 1 if it finished; None if unknown."""
    planned = assignment.job.total_steps - assignment.start_steps
    done = max(0, assignment.steps_done - assignment.start_steps)
    run_s, speed = assignment.predicted_run_s, assignment.predicted_steps_per_s
    if not run_s or planned <= 0:
        return None
    if assignment.state == AssignmentState.SUCCEEDED:
        return 1.0
    setup = max(0.0, 1.0 - planned / speed / run_s) if speed and assignment.share == 1.0 else 0.0
    return setup + (1.0 - setup) * done / planned


def _part(predicted: float | None, part: float | None) -> float | None:
    return None if predicted is None or part is None else predicted * part


def _since(start: datetime, moment: datetime | None) -> float | None:
    return None if moment is None else round((moment - start).total_seconds(), 3)


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))


def print_summary(report: dict[str, Any], console: Console) -> None:
    """Print predictions and measurements per job and in total."""
    console.print(_jobs(report))
    console.print(_starts(report))
    found, currency = report["summary"], report["currency"]
    told = [
        _median_of(run_time_errors(report["jobs"])),
        _median_of(run_time_errors(report["jobs"], estimated=True)),
    ]
    console.print(
        f"{found['completed']} of {len(report['jobs'])} jobs completed, {found['due_met']} in time;"
        f" {found['rounds']} rounds, {found['preemptions']} pre-emptions, {found['migrations']}"
        f" migrations; {found['forecasts_inside']} of {found['forecasts']} starts within their"
        " forecast."
    )
    energy_kwh = found["energy_kwh"] + found["profiling_energy_kwh"]
    cost = found["energy_cost"] + found["profiling_energy_cost"]
    console.print(
        f"{found['profile_runs']} profile runs with"
        f" {_percent(found['profiling_energy_kwh'], energy_kwh)} of all energy,"
        f" {_percent(found['profiling_energy_cost'], cost)} of its cost."
    )
    console.print(
        f"Energy {found['energy_kwh'] * 1000:.1f} Wh (modelled: emulated GPUs), billed"
        f" {found['energy_cost']:.5f} {currency}; of launches with a prediction"
        f" {found['energy_cost_of_predicted']:.5f}, predicted {found['energy_cost_predicted']:.5f};"
        f" tardiness {found['tardiness_cost']:.5f} {currency}; median error of predicted run times"
        f" {told[0]} by measured speeds, {told[1]} by estimated ones."
    )


def _median_of(errors: list[float]) -> str:
    """Return the median error, with the number of launches behind it."""
    if not errors:
        return "unknown"
    return f"{median(errors):.1%} (of {len(errors)} launches)"


def _jobs(report: dict[str, Any]) -> Table:
    in_docker = "docker" in report.get("runtimes", ())
    where = "jobs in Docker containers" if in_docker else "jobs as processes"
    headings = (
        "job", "kind", "where", "launches", "due date", "loss",
        "run time predicted / measured (launches with a prediction)",
        "energy cost predicted / billed",
    )  # fmt: skip
    title = f"Demo report (emulated GPUs, {where})"
    table = Table(*headings, title=title, title_justify="left")
    for job in report["jobs"]:
        placements = [p for p in job["placements"] if p["from_s"] is not None]
        where = " > ".join(f"{p['gpus']}x{p['gpu_type']}" for p in placements)
        due = "met" if job["due_met"] else f"{job['tardiness_s']:.0f} s late"
        table.add_row(
            job["name"],
            job["kind"],
            where,
            str(len(placements)),
            due,
            f"{_short(job['first_loss'])} > {_short(job['final_loss'])}",
            _told(placements, "predicted_run_s", "measured_run_s", ".1f") + " s",
            _told(placements, "predicted_energy_cost", "energy_cost", ".5f"),
        )
    return table


def _told(placements: list[dict[str, Any]], predicted: str, real: str, form: str) -> str:
    """Predicted and real totals of the launches with a prediction; "- / real" without any."""
    told = [p for p in placements if p[predicted] is not None]
    if not told:
        return f"- / {_total(placements, real):{form}}"
    return f"{_total(told, predicted):{form}} / {_total(told, real):{form}}"


def _starts(report: dict[str, Any]) -> Table:
    """Table of forecast and actual starts, in seconds from the submission, and of stops."""
    headings = ("job", "forecast start (80% interval)", "started", "stops", "shortest unforced")
    table = Table(*headings, title="Starts and stops, s after submission", title_justify="left")
    for job in report["jobs"]:
        told, shortest_s = job["forecast"], shortest_unforced_s(job, report["jobs"])
        forecast = [_after(job, told and told[name]) for name in ("start_s", "low_s", "high_s")]
        table.add_row(
            job["name"],
            "{} ({} to {})".format(*forecast) if told else "-",
            _after(job, job["started_s"]),
            str(len(stops([job]))),
            "-" if shortest_s is None else f"{shortest_s:.1f} s",
        )
    return table


def _after(job: dict[str, Any], at_s: float | None) -> str:
    return "-" if at_s is None else f"{at_s - job['submitted_s']:.1f}"


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "none"


def _short(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.3f}"
