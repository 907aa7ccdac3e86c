"""Findings of a run: from the journals of all jobs, and from the server at the end."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from experiments.chaos.checks import invariants as named
from experiments.chaos.checks.batch import check_batch
from experiments.chaos.checks.invariants import Invariant, summed
from experiments.chaos.checks.limits import Limited, check_limits
from experiments.chaos.checks.training import check_training
from experiments.chaos.jobs.forms import BATCH, LIMITED, SHARED, SLOTS, TRAINING
from experiments.chaos.system import System
from experiments.chaos.workload import LISTS, Record, Workload
from loadmaster.client import LoadmasterError

LONGEST_S = 10.0
"""Longest time without a round once all programs are at work, on two free cores."""


CHECKED_BY = {
    "training": named.STEPS,
    "slow": named.STEPS,
    "gang": named.GANGS,
    "shared": named.PAIRS,
    "limited": named.WALLTIMES,
    "array": named.ARRAYS,
    "after": named.DEPENDENCIES,
    "never": named.IMPOSSIBLE,
}
"""Invariants that jobs of a form check: a run that had none of these jobs has not checked them."""


@dataclass(frozen=True, slots=True)
class Known:
    """The server's word: number of its jobs (None if it does not answer), nodes of the batch jobs'
    assignments by id, which of these still hold a seat, and why jobs wait.
    """

    jobs: int | None
    nodes: Mapping[str, str]
    held: tuple[str, ...]
    waiting: Mapping[str, object]


def find(system: System, workload: Workload, blows: int) -> dict[str, Any]:
    """Figures and invariants as plain data; `blows`: number of faults."""
    known, records = _known(system, workload), system.records()
    figures: dict[str, Any] = {name: len(workload.of(name)) for name in LISTS}
    found = [Invariant(CHECKED_BY[form], 0) for form in workload.load.turn if form in CHECKED_BY]
    for name, slots in ((TRAINING, 1), (SHARED, SLOTS)):
        if jobs := workload.of(name):
            seen, checks = check_training(system.site.journals / name, jobs, slots)
            found += checks
            figures[f"{name}_launches"], figures[f"{name}_steps"] = seen.launches, seen.steps
    limited = _limited(system, workload, known)
    batch = check_batch(system.site.journals / BATCH, workload.of(BATCH), limited.first_end_s)
    found += [*(limited.invariants if limited.jobs else ()), *batch.invariants]
    found += _ends(workload, known)
    found += _of_the_server(system, workload, records, blows)
    figures |= {
        "batch_launches": batch.launches,
        "ended_at_walltime": limited.ended,
        "while_away": {part: n for part, n in limited.while_away.items() if n},
        "on_silent_node": limited.on_silent_node,
        "interrupted": sum(job.get("interrupt") == "released" for job in workload.all),
        "states": _states(workload, workload.all),
        "slowest_starts_s": system.slowest_starts_s(),
        "longest_without_round_s": round(workload.rounds.longest_s, 1),
        "longest_without_round_at_boot_s": round(workload.rounds.longest_at_s, 1),
    }
    return {"figures": figures, "invariants": [asdict(one) for one in summed(found)]}


def holds(result: Mapping[str, Any]) -> bool:
    """Return True if every invariant was checked, and none was ever violated."""
    return all(Invariant(**one).holds for one in result["invariants"])


def _of_the_server(
    system: System, workload: Workload, records: Mapping[str, Any], blows: int
) -> Iterable[Invariant]:
    yield from (Invariant(**one) for one in records["invariants"])
    lost = system.lost_unduly(records["lost"])
    yield Invariant(named.NODES, blows, tuple(lost))
    longest_s, most_s = workload.rounds.longest_s, LONGEST_S * system.slowness
    text = f"for {longest_s:.1f} s no round was held, not {most_s:.1f} s at most"
    late = (text,) if longest_s > most_s else ()
    yield Invariant(named.ROUNDS, workload.rounds.seen, late)


def _ends(workload: Workload, known: Known) -> Iterable[Invariant]:
    """Each job has come to its right end, there are no others, and none holds a seat."""
    ids = [pk for job in workload.all for pk in _elements(job)]
    doubled = () if known.jobs in (None, len(ids)) else (f"{known.jobs} jobs, not {len(ids)}",)
    yield Invariant(named.JOB_DOUBLED, 0 if known.jobs is None else len(ids), doubled)
    wrong = tuple(_wrong_ends(workload, known))
    yield Invariant(named.RIGHT_END, len(workload.all), wrong)
    yield Invariant(named.SEATS, len(known.nodes), known.held)


def _wrong_ends(workload: Workload, known: Known) -> Iterable[str]:
    for job in workload.all:
        fails = "walltime_s" in job or "never" in job
        state, right = workload.states.get(job["id"], "unknown"), "failed" if fails else "completed"
        if state != right:
            why = f"; it waits: {waits}" if (waits := known.waiting.get(job["id"])) else ""
            yield f"job {job['id']} ({job['form']}) is {state}, not {right}{why}"


def _known(system: System, workload: Workload) -> Known:
    batch = [pk for name in (LIMITED, BATCH) for job in workload.of(name) for pk in _elements(job)]
    try:
        with system.client() as client:
            jobs = list(client.jobs())
            rows = [(job, row) for job in batch for row in client.assignments(job)]
    except LoadmasterError:
        return Known(None, {}, (), {})
    held = (f"job {job} still holds a seat on {row['node']}" for job, row in rows if _holds(row))
    waiting = {job.id: job.waiting for job in jobs if job.waiting is not None}
    return Known(len(jobs), {row["id"]: row["node"] for _, row in rows}, tuple(held), waiting)


def _holds(assignment: Mapping[str, Any]) -> bool:
    return assignment["ended_at"] is None


def _elements(job: Record) -> list[str]:
    elements: list[str] = job.get("elements", [job["id"]])
    return elements


def _limited(system: System, workload: Workload, known: Known) -> Limited:
    """Ends of batch jobs at their walltime, and how many of them while a part was away."""
    site, away = system.site, {name: part.away for name, part in system.parts.items()}
    return check_limits(
        site.journals / LIMITED,
        workload.of(LIMITED),
        site.clockwork["grace_s"],
        away,
        system.slowness,
        known.nodes,
    )


def _states(workload: Workload, jobs: Iterable[Record]) -> dict[str, int]:
    return dict(Counter(workload.states.get(job["id"], "unknown") for job in jobs))
