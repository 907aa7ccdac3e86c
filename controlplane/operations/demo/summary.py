"""The demo's report in words."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def print_summary(report: dict[str, Any], console: Console) -> None:
    """Per job and in all: what was predicted, what was measured."""
    console.print(_jobs(report))
    found, currency = report["summary"], report["currency"]
    error = found["median_run_time_error"]
    console.print(
        f"{found['completed']} of {len(report['jobs'])} jobs completed, {found['due_met']} in time;"
        f" {found['rounds']} rounds, {found['preemptions']} pre-emptions, {found['migrations']}"
        f" migrations, {found['profile_runs']} profile runs."
    )
    console.print(
        f"Energy {found['energy_kwh'] * 1000:.1f} Wh (modelled: emulated GPUs); cost predicted"
        f" {found['energy_cost_predicted']:.5f}, billed {found['energy_cost']:.5f} {currency};"
        f" tardiness {found['tardiness_cost']:.5f} {currency}; median error of predicted run times"
        f" {'unknown' if error is None else format(error, '.1%')}."
    )


def _jobs(report: dict[str, Any]) -> Table:
    where = (
        "jobs in Docker containers"
        if "docker" in report.get("runtimes", ())
        else "jobs as processes"
    )
    table = Table(title=f"Demo report (emulated GPUs, {where})", title_justify="left")
    for heading in (
        "job",
        "kind",
        "where",
        "moves",
        "due date",
        "loss",
        "run time predicted / measured",
        "energy cost predicted / billed",
    ):
        table.add_column(heading)
    for job in report["jobs"]:
        placements = [p for p in job["placements"] if p["from_s"] is not None]
        where = " > ".join(f"{p['gpus']}x{p['gpu_type']}" for p in placements)
        due = "met" if job["due_met"] else f"{job['tardiness_s']:.0f} s late"
        table.add_row(
            job["name"],
            job["kind"],
            where,
            str(len(job["moves"])),
            due,
            f"{_short(job['first_loss'])} > {_short(job['final_loss'])}",
            f"{_sum(placements, 'predicted_run_s'):.1f} /"
            f" {_sum(placements, 'measured_run_s'):.1f} s",
            f"{_sum(placements, 'predicted_energy_cost'):.5f} /"
            f" {_sum(placements, 'energy_cost'):.5f}",
        )
    return table


def _sum(placements: list[dict[str, Any]], name: str) -> float:
    return sum(p[name] or 0.0 for p in placements)


def _short(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.3f}"
