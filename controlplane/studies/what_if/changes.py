"""Changes that could start a waiting job, each as the snapshot with that one change. Pure."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from math import ceil, isfinite
from typing import Any

from controlplane.loop.rounds import kept
from policies.contract.labels import (
    is_own,
)
from policies.contract.snapshot import (
    JOB_COUNTS,
    JOB_NUMBERS,
    JobColumns,
    Jobs,
    NodeState,
    NodeView,
    Snapshot,
    frozen,
)
from policies.placement.leftover import Leftover

MOST_NODES = 3
"""Most nodes of which each is tried as uncordoned."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change: a code, words that follow "with" or "if", its snapshot, and how to make it.

    `settings`: fields with which the job can be cloned; `node`: the node to be uncordoned.
    """

    code: str
    words: str
    snapshot: Snapshot
    settings: str = ""
    node: str = ""


def changes_for(snapshot: Snapshot, job: str, closed: Collection[str] = ()) -> Iterator[Change]:
    """Yield the changes worth a decision, those that cost the job's owner least first.

    `closed`: ids of nodes that an operator could uncordon. Left out is a change after which no
    node has room for the job beside the running ones; a greater priority may take it from them.
    """
    row = snapshot.jobs.position[job]
    yield Change("nothing", "nothing changed", snapshot)
    for change in _of_job(snapshot, row):
        if _left(change.snapshot).could_start(row):
            yield change
    yield from _uncordoned(snapshot, row, closed)
    priorities = snapshot.jobs.columns.counts["priority"]
    most = int(priorities.max())
    if len(priorities) > 1 and Leftover.of(snapshot, ()).could_start(row):
        priority = most + (priorities[row] <= most)
        changed = with_job(snapshot, row, priority=int(priority))
        yield Change("priority", f"priority {priority}", changed, f"priority={priority}")


def with_job(snapshot: Snapshot, row: int, **fields: Any) -> Snapshot:
    """Return the snapshot with other values of one job."""
    columns = snapshot.jobs.columns
    numbers, counts, others = dict(columns.numbers), dict(columns.counts), dict(columns.others)
    for name, value in fields.items():
        if name in JOB_NUMBERS:
            numbers[name] = numbers[name].copy()
            numbers[name][row] = value
            frozen(numbers[name])
        elif name in JOB_COUNTS:
            counts[name] = counts[name].copy()
            counts[name][row] = value
            frozen(counts[name])
        else:
            others[name] = (*others[name][:row], value, *others[name][row + 1 :])
    jobs = Jobs(JobColumns(columns.ids, columns.kinds, numbers, counts, others))
    return snapshot.following(jobs=jobs)


def _left(snapshot: Snapshot) -> Leftover:
    """Return what running jobs leave if they stay."""
    return Leftover.of(snapshot, kept(snapshot, "", "").placements)


def _of_job(snapshot: Snapshot, row: int) -> Iterator[Change]:
    columns = snapshot.jobs.columns
    types, labels = columns.others["allowed_types"][row], columns.others["labels"][row]
    if types:
        changed = with_job(snapshot, row, allowed_types=())
        yield Change("types", "any GPU type allowed", changed, "allowed_types=[]")
    if named := [label for label in labels if not is_own(label)]:
        rest = tuple(label for label in labels if is_own(label))
        changed = with_job(snapshot, row, labels=rest)
        yield Change("labels", f"no label ({', '.join(named)})", changed, "labels=[]")
    yield from _fewer_gpus(snapshot, row)
    yield from _less(snapshot, row)
    yield from _due_later(snapshot, row)


def _fewer_gpus(snapshot: Snapshot, row: int) -> Iterator[Change]:
    """Yield the greatest smaller number of GPUs for which there is room, as many for each unit."""
    columns = snapshot.jobs.columns
    least, units = (int(columns.counts[name][row]) for name in ("gpus_min", "units"))
    names = ("gpus_min", "gpus_max") if columns.others["batch"][row] else ("gpus_min",)
    for gpus in range(least - units, 0, -units):
        changed = with_job(snapshot, row, **dict.fromkeys(names, gpus))
        if _left(changed).could_start(row):
            words = f"{gpus} GPU{'s' * (gpus > 1)} instead of {least}"
            settings = " --set ".join(f"{name}={gpus}" for name in names)
            yield Change("gpus", words, changed, settings)
            return


def _less(snapshot: Snapshot, row: int) -> Iterator[Change]:
    """Yield the cores and memory that a node with enough free GPUs has left, most of both."""
    columns, left = snapshot.jobs.columns, _left(snapshot)
    wanted = {name: float(columns.numbers[name][row]) for name in ("cores", "memory_gb")}
    found = list[tuple[float, dict[str, float]]]()
    for node in snapshot.nodes:
        if left.gpus.get(node.id, 0) >= columns.counts["gpus_min"][row]:
            some = {n: _at_most(w, left.amount(node, n)) for n, w in wanted.items()}
            part = min((some[n] / w for n, w in wanted.items() if w), default=1.0)
            if 0.0 < part < 1.0:
                found.append((part, some))
    if found:
        _, some = max(found, key=lambda of: of[0])
        words = f"{some['cores']:g} cores and {some['memory_gb']:g} GB of memory"
        settings = f"cores={some['cores']:g} --set memory_gb={some['memory_gb']:g}"
        yield Change("less", words, with_job(snapshot, row, **some), settings)


def _at_most(amount: float, free: float) -> float:
    """Return the amount, or the whole number that is free."""
    return amount if free >= amount else float(max(0, int(free)))


def _due_later(snapshot: Snapshot, row: int) -> Iterator[Change]:
    """Yield the due date that its slowest possible run, begun now, would meet."""
    columns = snapshot.jobs.columns
    due_s, steps = (float(columns.numbers[name][row]) for name in ("due_s", "remaining_steps"))
    kind = snapshot.kinds[snapshot.job_kinds[row]]
    gpus = range(int(columns.counts["gpus_min"][row]), int(columns.counts["gpus_max"][row]) + 1)
    rates = [t.steps_per_s for t in kind.throughputs if t.is_known and t.gpus in gpus]
    if not rates or not isfinite(due_s):
        return
    minutes = ceil(1.1 * (steps / min(rates) + kind.setup_s) / 60.0)
    if (later_s := snapshot.now_s + 60.0 * minutes) > due_s:
        changed = with_job(snapshot, row, due_s=later_s)
        yield Change("due", f"a due date {minutes} minutes from now", changed, f"due=+{minutes}m")


def _uncordoned(snapshot: Snapshot, row: int, closed: Collection[str]) -> Iterator[Change]:
    found = 0
    for node in snapshot.nodes:
        if node.id in closed and not node.takes_training and found < MOST_NODES:
            changed = snapshot.following(nodes=tuple(_opened(n, node) for n in snapshot.nodes))
            if _left(changed).unfit(row, _opened(node, node)) is None:
                found += 1
                yield Change("uncordon", f"{node.name} uncordoned", changed, node=node.name)


def _opened(node: NodeView, wanted: NodeView) -> NodeView:
    if node is not wanted:
        return node
    return replace(node, state=NodeState.READY, drain_until_s=None)
