"""Findings of a run: from the journals of all jobs, and from the server at the end."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.chaos.checks.batch import check_batch
from experiments.chaos.checks.limits import check_limits
from experiments.chaos.jobs.forms import BATCH, LIMITED
from experiments.chaos.system import System
from experiments.chaos.workload import Record, Workload
from loadmaster.client import LoadmasterError
from loadmaster.demo.journal_checks import check_journals


@dataclass(frozen=True, slots=True)
class Known:
    """The server's word: jobs beyond the acknowledged ones (None if it does not answer), nodes of
    the batch jobs' assignments by id, and which of these still hold a seat.
    """

    doubled: int | None
    nodes: Mapping[str, str]
    held: tuple[str, ...]


def find(system: System, workload: Workload) -> dict[str, Any]:
    """Everything that can be wrong, and counts, as plain data."""
    found, known = check_journals(system.site.journals), _known(system, workload)
    limited, first_end_s = _limited(system, workload, known)
    return {
        "jobs": found.jobs,
        "states": _states(workload, workload.submitted),
        "doubled": known.doubled,
        "launches": found.launches,
        "steps": found.steps,
        "lost": list(found.lost),
        "overlaps": list(found.overlaps),
        "held_twice": list(found.held_twice),
        "limited": limited,
        "batch": _batch(system, workload, first_end_s, known),
    }


def holds(result: Mapping[str, Any]) -> bool:
    """Return True if nothing was lost, doubled or run twice, every job came to its right end, and
    none broke a rule.
    """
    bad = result["lost"] or result["overlaps"] or result["held_twice"] or result["doubled"] != 0
    limited, batch = result["limited"], result["batch"]
    rules = not (limited["wrong"] or batch["wrong"])
    completed, failed = {*result["states"], *batch["states"]}, {*limited["states"], *batch["never"]}
    return not bad and rules and completed <= {"completed"} and failed <= {"failed"}


def _known(system: System, workload: Workload) -> Known:
    batch = [pk for job in (*workload.limited, *workload.batch) for pk in _elements(job)]
    count = sum(len(_elements(job)) for job in workload.all)
    try:
        with system.client() as client:
            doubled = sum(1 for _ in client.jobs()) - count
            rows = [(job, row) for job in batch for row in client.assignments(job)]
    except LoadmasterError:
        return Known(None, {}, ())
    held = (f"job {job} still holds a seat on {row['node']}" for job, row in rows if _holds(row))
    return Known(doubled, {row["id"]: row["node"] for _, row in rows}, tuple(held))


def _holds(assignment: Mapping[str, Any]) -> bool:
    return assignment["ended_at"] is None


def _elements(job: Record) -> list[str]:
    elements: list[str] = job.get("elements", [job["id"]])
    return elements


def _limited(
    system: System, workload: Workload, known: Known
) -> tuple[dict[str, Any], Mapping[str, float]]:
    """Ends of batch jobs at their walltime, and how many of them while a part was away."""
    site, away = system.site, {name: part.away for name, part in system.parts.items()}
    found = check_limits(
        site.journals / LIMITED, workload.limited, site.clockwork["grace_s"], away, system.slowness,
        known.nodes,
    )  # fmt: skip
    return {
        "jobs": found.jobs, "launches": found.launches, "ended_at_walltime": found.ended,
        "while_away": dict(found.while_away), "on_silent_node": found.on_silent_node,
        "states": _states(workload, workload.limited), "wrong": list(found.wrong),
    }, found.first_end_s  # fmt: skip


def _batch(
    system: System, workload: Workload, first_end_s: Mapping[str, float], known: Known
) -> dict[str, Any]:
    """Other batch jobs; `never`: states of those that wait for the impossible."""
    jobs = workload.batch
    found = check_batch(system.site.journals / BATCH, jobs, first_end_s)
    return {
        "jobs": found.jobs, "launches": found.launches, "wrong": [*found.wrong, *known.held],
        "states": _states(workload, (job for job in jobs if "never" not in job)),
        "never": _states(workload, (job for job in jobs if "never" in job)),
    }  # fmt: skip


def _states(workload: Workload, jobs: Iterable[Record]) -> dict[str, int]:
    return dict(Counter(workload.states.get(job["id"], "unknown") for job in jobs))
