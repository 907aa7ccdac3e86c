"""Changes that could start a waiting job, each as the snapshot with that one change. Pure."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from math import ceil, isfinite
from typing import Any

from controlplane.loop.rounds import kept
from policies.contract.labels import is_own
from policies.contract.snapshot import (
    JOB_COUNTS,
    JOB_NUMBERS,
    JobColumns,
    Jobs,
    NodeState,
    Snapshot,
    frozen,
)
from policies.placement.waiting.leftover import Leftover

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
    # 1. No change at all: the next decision may start the job as it is.
    row = snapshot.jobs.position[job]
    yield Change("nothing", "nothing changed", snapshot)

    # 2. A smaller or less particular job, then more nodes.
    for change in _changes_of_job(snapshot, row):
        if _room_beside_running(change.snapshot).could_start(row):
            yield change
    yield from _uncordoned(snapshot, row, closed)

    # 3. A priority above all others, if the job would fit on nodes without other jobs.
    priorities = snapshot.jobs.columns.counts["priority"]
    highest = int(priorities.max())
    if len(priorities) > 1 and Leftover.of(snapshot, ()).could_start(row):
        priority = highest + 1
        changed = with_job(snapshot, row, priority=priority)
        yield Change("priority", f"priority {priority}", changed, f"priority={priority}")


def with_job(snapshot: Snapshot, row: int, **fields: Any) -> Snapshot:
    """Return the snapshot with other values of the job in this row."""
    columns = snapshot.jobs.columns
    numbers = dict(columns.numbers)
    counts = dict(columns.counts)
    others = dict(columns.others)
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


def _room_beside_running(snapshot: Snapshot) -> Leftover:
    """Return what running jobs leave if they stay."""
    return Leftover.of(snapshot, kept(snapshot, "", "").placements)


def _changes_of_job(snapshot: Snapshot, row: int) -> Iterator[Change]:
    """Yield changes of the job itself: GPU types, labels, GPUs, cores and memory, due date."""
    columns = snapshot.jobs.columns
    if columns.others["allowed_types"][row]:
        changed = with_job(snapshot, row, allowed_types=())
        yield Change("types", "any GPU type allowed", changed, "allowed_types=[]")

    # Labels of our own say what the job is; the user has given the others.
    labels = columns.others["labels"][row]
    own_labels = tuple(label for label in labels if is_own(label))
    given_labels = [label for label in labels if not is_own(label)]
    if given_labels:
        changed = with_job(snapshot, row, labels=own_labels)
        yield Change("labels", f"no label ({', '.join(given_labels)})", changed, "labels=[]")

    yield from _fewer_gpus(snapshot, row)
    yield from _less_cores_and_memory(snapshot, row)
    yield from _due_later(snapshot, row)


def _fewer_gpus(snapshot: Snapshot, row: int) -> Iterator[Change]:
    """Yield the greatest smaller number of GPUs for which there is room, as many for each unit."""
    columns = snapshot.jobs.columns
    present = int(columns.counts["gpus_min"][row])
    units = int(columns.counts["units"][row])
    fields = ("gpus_min", "gpus_max") if columns.others["batch"][row] else ("gpus_min",)
    for gpus in range(present - units, 0, -units):
        changed = with_job(snapshot, row, **dict.fromkeys(fields, gpus))
        if _room_beside_running(changed).could_start(row):
            words = f"{gpus} GPU{'s' * (gpus > 1)} instead of {present}"
            settings = " --set ".join(f"{field}={gpus}" for field in fields)
            yield Change("gpus", words, changed, settings)
            return


def _less_cores_and_memory(snapshot: Snapshot, row: int) -> Iterator[Change]:
    """Yield the cores and memory that a node with enough free GPUs has left, most of both.

    Nodes are compared by the smaller of the fractions of the wanted cores and memory.
    """
    columns = snapshot.jobs.columns
    room = _room_beside_running(snapshot)
    wanted = {name: float(columns.numbers[name][row]) for name in ("cores", "memory_gb")}
    best_fraction = 0.0
    best: dict[str, float] = {}
    for node in snapshot.nodes:
        if room.gpus.get(node.id, 0) < columns.counts["gpus_min"][row]:
            continue
        offer = {}
        fraction = 1.0
        for name, amount in wanted.items():
            offer[name] = _at_most(amount, room.amount(node, name))
            if amount:
                fraction = min(fraction, offer[name] / amount)
        if best_fraction < fraction < 1.0:
            best_fraction = fraction
            best = offer
    if best:
        cores = f"{best['cores']:g}"
        memory_gb = f"{best['memory_gb']:g}"
        words = f"{cores} cores and {memory_gb} GB of memory"
        settings = f"cores={cores} --set memory_gb={memory_gb}"
        yield Change("less", words, with_job(snapshot, row, **best), settings)


def _at_most(amount: float, free: float) -> float:
    """Return the amount, or the whole number that is free if that is less."""
    return amount if free >= amount else float(max(0, int(free)))


def _due_later(snapshot: Snapshot, row: int) -> Iterator[Change]:
    """Yield the due date that its slowest possible run, begun now, would meet."""
    columns = snapshot.jobs.columns
    due_s = float(columns.numbers["due_s"][row])
    steps = float(columns.numbers["remaining_steps"][row])

    # The speed of each number of GPUs that the job may have.
    kind = snapshot.kinds[snapshot.job_kinds[row]]
    gpus = range(int(columns.counts["gpus_min"][row]), int(columns.counts["gpus_max"][row]) + 1)
    rates = []
    for throughput in kind.throughputs:
        if throughput.is_known and throughput.gpus in gpus:
            rates.append(throughput.steps_per_s)
    if not rates or not isfinite(due_s):
        return

    # A tenth more than its run takes, in whole minutes.
    minutes = ceil(1.1 * (steps / min(rates) + kind.setup_s) / 60.0)
    later_s = snapshot.now_s + 60.0 * minutes
    if later_s > due_s:
        changed = with_job(snapshot, row, due_s=later_s)
        yield Change("due", f"a due date {minutes} minutes from now", changed, f"due=+{minutes}m")


def _uncordoned(snapshot: Snapshot, row: int, closed: Collection[str]) -> Iterator[Change]:
    """Yield the opening of each closed node on which the job fits, of MOST_NODES at most."""
    yielded = 0
    for node in snapshot.nodes:
        if node.id not in closed or node.takes_training:
            continue
        if yielded == MOST_NODES:
            return
        opened = replace(node, state=NodeState.READY, drain_until_s=None)
        nodes = tuple(opened if other is node else other for other in snapshot.nodes)
        changed = snapshot.following(nodes=nodes)
        if _room_beside_running(changed).unfit(row, opened) is None:
            yielded += 1
            yield Change("uncordon", f"{node.name} uncordoned", changed, node=node.name)
