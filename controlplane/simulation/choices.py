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
"""A choice is given up once its rounds have looked at so many jobs, all rounds added up."""

BUDGET_S = 60.0
"""A choice is given up after so long. With time slices shorter than a step, no job ever ends."""

EVERY_S = 0.25
"""Time between two reports of progress."""

Fractions: TypeAlias = "SynchronizedArray[float]"
"""Fraction done of each choice, shared by the processes."""

_done: Fractions
"""The fractions in a process of the pool."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Policy, its parameters, and the value of time per hour."""

    policy: str
    parameters: Mapping[str, Any]
    value_of_time: float


def run_choices(
    document: Mapping[str, Any], processes: int, on_progress: Callable[[float], None]
) -> dict[str, Any]:
    """Simulate a document {snapshot, choices, seen}; return the result as plain JSON.

    `seen`: ids of jobs that the reader may see; the others have an empty id in the result.
    """
    snapshot = snapshot_json.from_json(document["snapshot"])
    choices = [Choice(**fields) for fields in document["choices"]]
    visible = set(document["seen"])
    ids = snapshot.jobs.columns.ids
    results = compare(snapshot, choices, processes, on_progress)
    written = []
    for choice, result in zip(choices, results, strict=True):
        written.append({**asdict(choice), **_written(result, ids, visible)})
    return {
        "at_s": snapshot.now_s,
        "currency": snapshot.currency,
        "nodes": {node.id: node.name for node in snapshot.nodes},
        "jobs": [job if job in visible else "" for job in ids],
        "choices": written,
    }


def compare(
    snapshot: Snapshot,
    choices: Sequence[Choice],
    processes: int = 1,
    on_progress: Callable[[float], None] = lambda _: None,
) -> list[Ahead | str]:
    """Return the rest of the queue under each choice, or the message of its failure.

    `on_progress` gets the fraction done of all choices, from 0 to 1.
    """
    context = get_context("fork")
    done: Fractions = context.Array(c_double, len(choices))
    with ProcessPoolExecutor(max(1, processes), context, _share, (done,)) as pool:
        futures = []
        for number, choice in enumerate(choices):
            futures.append(pool.submit(_ahead, snapshot, choice, number))
        while wait(futures, EVERY_S).not_done:
            on_progress(sum(done[:]) / len(choices))
    return [future.result() for future in futures]


def with_value_of_time(snapshot: Snapshot, value_of_time: float) -> Snapshot:
    """Return the snapshot with waiting at this price per hour, by team and priority."""
    columns = snapshot.jobs.columns
    team_weights = {team.name: team.weight for team in snapshot.teams}
    priorities = columns.counts["priority"].tolist()
    costs = []
    for team, priority in zip(columns.others["team"], priorities, strict=True):
        costs.append(waiting_cost(value_of_time, team_weights.get(team, 1.0), priority))
    numbers = {**columns.numbers, "waiting_cost": frozen(np.array(costs, dtype=np.float64))}
    priced = JobColumns(columns.ids, columns.kinds, numbers, columns.counts, columns.others)
    return snapshot.following(jobs=Jobs(priced, snapshot.jobs.position))


def _share(done: Fractions) -> None:
    """Give a new process of the pool the shared fractions."""
    global _done
    _done = done


def _ahead(snapshot: Snapshot, choice: Choice, number: int) -> Ahead | str:
    """Simulate one choice in a process of the pool; `number`: its place among the choices."""
    priced = with_value_of_time(snapshot, choice.value_of_time)

    def note_progress(progress: Progress) -> None:
        _done[number] = progress.completed / max(1, progress.total)

    try:
        policy = registry.make(choice.policy, choice.parameters)
        if number > 0:
            # The memory belongs to the policy that the cluster has now.
            priced = priced.following(memory={})
        return run_ahead(
            priced, policy, work=MOST_WORK, budget_s=BUDGET_S, on_progress=note_progress
        )
    except (PolicyError, SimulationError) as error:
        return str(error)
    except Exception as error:  # a policy may be anybody's code: it raises what it likes
        return f"{type(error).__name__}: {error}"
    finally:
        _done[number] = 1.0


def _written(result: Ahead | str, ids: Sequence[str], visible: set[str]) -> dict[str, Any]:
    """Return the result of one choice as plain JSON, without reasons of jobs not to be seen."""
    if isinstance(result, str):
        return {"failure": result, "totals": None, "jobs": []}
    totals = {"cost": result.energy_cost + result.lateness_cost}
    for name, value in _plain(result).items():
        if name != "jobs":
            totals[name] = value
    totals["unended"] = sum(job.end_s is None for job in result.jobs.values())

    jobs = [_plain(result.jobs[job]) for job in ids]
    for job in jobs:
        if job.pop("job") not in visible:
            job["why"] = ""
    return {"failure": "", "totals": totals, "jobs": jobs}


def _plain(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name; None for figures that are infinite or not known."""
    fields: dict[str, Any] = {}
    for name in instance.__dataclass_fields__:
        value = getattr(instance, name)
        if isinstance(value, float) and not isfinite(value):
            value = None
        fields[name] = value
    return fields
