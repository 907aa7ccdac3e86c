"""Live queue simulated to its end under several choices side by side, in two processes or more.

A choice is a policy with parameters and a value of time, which is what an hour of a job's waiting
is worth. The first one is what the cluster has now, so only that gets the snapshot's memory.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from ctypes import c_double
from dataclasses import asdict, dataclass
from math import isfinite
from multiprocessing import get_context
from multiprocessing.sharedctypes import SynchronizedArray
from typing import Any, TypeAlias

import numpy as np

from controlplane.simulation.ahead import Ahead, run_ahead
from controlplane.simulation.world.outcome import Progress
from controlplane.simulation.world.run import SimulationError
from policies.contract import snapshot_json
from policies.contract.policy import PolicyError
from policies.contract.snapshot import JobColumns, Jobs, Snapshot, frozen
from policies.contract.views import waiting_cost
from policies.host import registry

MOST_WORK = 10_000_000
"""Jobs that the rounds of one choice may see in all."""

BUDGET_S = 60.0
"""Longest time of one choice: time slices shorter than a job's step never end it."""

EVERY_S = 0.25

Fractions: TypeAlias = "SynchronizedArray[float]"
"""Fraction done of each choice, shared by the processes."""

_done: Fractions


@dataclass(frozen=True, slots=True)
class Choice:
    """Policy, its parameters, and the value of time per hour."""

    policy: str
    parameters: Mapping[str, Any]
    value_of_time: float


def run_choices(
    document: Mapping[str, Any], processes: int, on_progress: Callable[[float], None]
) -> dict[str, Any]:
    """Result of a document {snapshot, choices, seen} as plain JSON; jobs not `seen` have no id."""
    snapshot = snapshot_json.from_json(document["snapshot"])
    choices, seen = [Choice(**c) for c in document["choices"]], set(document["seen"])
    ids = snapshot.jobs.columns.ids
    found = compare(snapshot, choices, processes, on_progress)
    return {
        "at_s": snapshot.now_s,
        "currency": snapshot.currency,
        "nodes": {node.id: node.name for node in snapshot.nodes},
        "jobs": [job if job in seen else "" for job in ids],
        "choices": [
            {**asdict(choice), **_written(ahead, ids, seen)}
            for choice, ahead in zip(choices, found, strict=True)
        ],
    }


def compare(
    snapshot: Snapshot,
    choices: Sequence[Choice],
    processes: int = 1,
    on_progress: Callable[[float], None] = lambda _: None,
) -> list[Ahead | str]:
    """Rest of the queue under each choice, or the message of its failure."""
    context = get_context("fork")
    done: Fractions = context.Array(c_double, len(choices))
    with ProcessPoolExecutor(max(1, processes), context, _share, (done,)) as pool:
        found = [pool.submit(_ahead, snapshot, choice, i) for i, choice in enumerate(choices)]
        while wait(found, EVERY_S).not_done:
            on_progress(sum(done[:]) / len(choices))
    return [future.result() for future in found]


def with_value_of_time(snapshot: Snapshot, value_of_time: float) -> Snapshot:
    """Return the snapshot with waiting at this price per hour, by team and priority."""
    columns, weights = snapshot.jobs.columns, {team.name: team.weight for team in snapshot.teams}
    of_jobs = zip(columns.others["team"], columns.counts["priority"].tolist(), strict=True)
    costs = [waiting_cost(value_of_time, weights.get(team, 1.0), rank) for team, rank in of_jobs]
    numbers = {**columns.numbers, "waiting_cost": frozen(np.array(costs, dtype=np.float64))}
    priced = JobColumns(columns.ids, columns.kinds, numbers, columns.counts, columns.others)
    return snapshot.following(jobs=Jobs(priced, snapshot.jobs.position))


def _share(done: Fractions) -> None:
    global _done
    _done = done


def _ahead(snapshot: Snapshot, choice: Choice, number: int) -> Ahead | str:
    priced = with_value_of_time(snapshot, choice.value_of_time)

    def tell(progress: Progress) -> None:
        _done[number] = progress.completed / max(1, progress.total)

    try:
        policy = registry.make(choice.policy, choice.parameters)
        own = priced.following(memory={}) if number else priced
        return run_ahead(own, policy, work=MOST_WORK, budget_s=BUDGET_S, on_progress=tell)
    except (PolicyError, SimulationError) as error:
        return str(error)
    except Exception as error:  # a policy may be anybody's code: it raises what it likes
        return f"{type(error).__name__}: {error}"
    finally:
        _done[number] = 1.0


def _written(ahead: Ahead | str, ids: Sequence[str], seen: set[str]) -> dict[str, Any]:
    if isinstance(ahead, str):
        return {"failure": ahead, "totals": None, "jobs": []}
    totals = {
        "cost": ahead.energy_cost + ahead.lateness_cost,
        **{name: value for name, value in _plain(ahead).items() if name != "jobs"},
        "unended": sum(job.end_s is None for job in ahead.jobs.values()),
    }
    jobs = [_plain(ahead.jobs[job]) for job in ids]
    for job in jobs:
        if job.pop("job") not in seen:
            job["why"] = ""
    return {"failure": "", "totals": totals, "jobs": jobs}


def _plain(of: Any) -> dict[str, Any]:
    """Fields by name; None for figures that do not exist."""
    fields = ((name, getattr(of, name)) for name in of.__dataclass_fields__)
    return {n: None if isinstance(v, float) and not isfinite(v) else v for n, v in fields}
