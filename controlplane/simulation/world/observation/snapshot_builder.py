"""Jobs and kinds of a snapshot, as columns of the workload with changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.world.job_table import JobTable, Launch
from controlplane.simulation.world.observation.predictions import Predictions
from controlplane.simulation.world.observation.queue_window import queue_window
from policies.contract.snapshot import (
    Floats,
    JobColumns,
    JobPhase,
    Jobs,
    KindView,
    RankPlacement,
    Running,
    frozen,
)
from policies.contract.views import waiting_cost

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_keys, dict_values

Received: TypeAlias = tuple[tuple[str, float], ...]
Column: TypeAlias = Callable[[], tuple[Any, ...]]
Values = TypeVar("Values")

RUNS, WAITS = JobPhase.RUNNING, JobPhase.WAITING
"""Looked up once, because enum members are slow to look up on Python 3.11."""

CHANGING = ("phase", "running", "received_s")


class SnapshotBuilder:
    """Builder of snapshots' jobs; columns of equal values are built once."""

    def __init__(
        self,
        table: JobTable,
        kinds: tuple[KindView, ...],
        scenario: Scenario,
        predictions: Predictions,
    ) -> None:
        self.table, self.columns, self.predictions = table, table.columns, predictions
        self.round_jobs = scenario.round_jobs
        self.gpu_type = {n.id: n.gpu_type for n in scenario.nodes}
        self.profiling: set[str] = set()
        self._workload = _Workload(table, scenario)
        self._cut: _Cut | None = None
        before = table.columns.others["received_s"]
        self._received: dict[int, Received] = {row: r for row, r in enumerate(before) if r}
        self._kinds = {k.id: k for k in kinds}
        self._place = {k.id: i for i, k in enumerate(kinds)}
        self._present: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._kinds_shown: tuple[KindView, ...] | None = None

    def enter(self, row: int) -> bool:
        """Add a job; return True if its kind is new."""
        kind = self.columns.kinds[row]
        is_new = kind not in self._seen
        self._seen.add(kind)
        if not self._present[kind]:
            self._kinds_shown = None
        self._present[kind] += 1
        return is_new

    def leave(self, row: int) -> None:
        kind = self.columns.kinds[row]
        self._present[kind] -= 1
        if not self._present[kind]:
            del self._present[kind]
            self._kinds_shown = None
        self._received.pop(row, None)

    def receive(self, launch: Launch) -> None:
        """Add the time of an ended launch to its job."""
        before = self._received.get(launch.row, ())
        self._received[launch.row] = self._with(before, launch.ranks, launch.start_s, launch.end_s)

    def learn(self, changed: Callable[[Iterable[KindView]], Iterable[KindView]]) -> None:
        """Replace the kinds that `changed` yields."""
        for kind in list(changed(self._kinds.values())):
            self._kinds[kind.id] = kind
            self._kinds_shown = None

    def kinds(self) -> tuple[KindView, ...]:
        """Kinds of present jobs, in the scenario's order."""
        if self._kinds_shown is None:
            present = sorted(self._present, key=self._place.__getitem__)
            self._kinds_shown = tuple(self._kinds[k] for k in present)
        return self._kinds_shown

    def rows(
        self, queue: Sequence[int], active: Sequence[int], number: int, *, hides_running: bool
    ) -> tuple[int, ...]:
        """Jobs that the round of this number sees, rising."""
        most = self.round_jobs
        if most is None or len(queue) <= most:
            return tuple(queue if hides_running else active)
        seen = queue_window(queue, most, number, self.columns.numbers["due_s"])
        if hides_running:
            return tuple(seen)
        waits = set(queue)
        return tuple(sorted([*seen, *(row for row in active if row not in waits)]))

    def jobs(
        self,
        rows: tuple[int, ...],
        running: Mapping[int, tuple[Running, ...]] | None,
        launches: Mapping[int, Launch],
        now_s: float,
    ) -> Jobs:
        """Return these jobs as they are now. `running`: by row, None if hidden."""
        cut = (
            self._cut
            if self._cut is not None and self._cut.rows == rows
            else _Cut(self._workload, rows)
        )
        self._cut = cut
        done = (
            self.table.steps_done[cut.at] if running is None else self.table.steps_at(cut.at, now_s)
        )
        numbers = Lazy(self.columns.numbers, cut.numbers.__getitem__)
        left = np.maximum(0.0, cut.numbers["total_steps"] - done)
        if self._workload.has_batch:  # nobody knows how long such a job will run
            left = np.where(cut.others["batch"], np.minimum(1.0, left), left)
        numbers["remaining_steps"] = frozen(left)
        if self.predictions.any:
            numbers["expected_run_s"] = frozen(self.predictions.expected_run_s(cut.at, now_s))
            numbers["walltime_s"] = frozen(self.predictions.shown_walltime_s(cut.at))
        changing = self._changing(rows, running, launches, now_s)
        others = Lazy(
            self.columns.others,
            lambda name: changing[name]() if name in changing else cut.others[name],
        )
        gpus_only = self.columns.gpus_only
        columns = JobColumns(cut.ids, cut.kinds, numbers, cut.counts, others, gpus_only)
        return Jobs(columns, cut.position)

    def _changing(
        self,
        rows: tuple[int, ...],
        running: Mapping[int, tuple[Running, ...]] | None,
        launches: Mapping[int, Launch],
        now_s: float,
    ) -> dict[str, Column]:
        size = len(rows)
        runs = tuple([running.get(row, ()) for row in rows]) if running else tuple(repeat((), size))
        unknown = self._unknown(rows)
        before = tuple([self._received.get(row, ()) for row in rows]) if self._received else ()
        held: tuple[Launch | None, ...] = ()
        if running is not None and len(launches) > len(running):
            stopping = {row: now for row, now in launches.items() if not now.goes_on}
            held = tuple(stopping.get(row) for row in rows)
        return {
            "running": lambda: runs,
            "phase": partial(_phases, runs, unknown),
            "received_s": partial(self._received_by, before, runs, held, now_s),
            "expected_source": partial(self.predictions.sources, rows),
        }

    def _unknown(self, rows: tuple[int, ...]) -> tuple[bool, ...]:
        if not self.profiling:
            return ()
        return tuple(kind in self.profiling for kind in _picked(self.columns.kinds, rows))

    def _received_by(
        self,
        before: tuple[Received, ...],
        runs: tuple[tuple[Running, ...], ...],
        held: tuple[Launch | None, ...],
        now_s: float,
    ) -> tuple[Received, ...]:
        received = list(before or repeat((), len(runs)))
        for i, of in enumerate(runs):
            for run in of:
                received[i] = self._with(received[i], run.ranks, run.since_s, now_s)
        for i, launch in enumerate(held):
            if launch is not None:
                received[i] = self._with(received[i], launch.ranks, launch.start_s, now_s)
        return tuple(received)

    def _with(
        self, received: Received, ranks: tuple[RankPlacement, ...], start_s: float, end_s: float
    ) -> Received:
        """Return the device time received, with that of a placement."""
        total = dict(received)
        for rank in [rank for rank in ranks if rank.devices]:
            gpu_type, seconds = self.gpu_type[rank.node], (end_s - start_s) * len(rank.devices)
            total[gpu_type] = total.get(gpu_type, 0.0) + seconds * rank.share
        return tuple(sorted(total.items()) if len(total) > len(received) else total.items())


class _Workload:
    """Constant columns of a whole workload, ready to be cut."""

    def __init__(self, table: JobTable, scenario: Scenario) -> None:
        columns, numbers = table.columns, table.columns.numbers
        restart_s = table.restart_cost_s + scenario.launch_s + scenario.stop_s
        own = {
            "total_steps": table.total_steps.astype(np.float64),
            "restart_cost_s": restart_s,
            "min_run_s": numbers["min_run_s"] + scenario.min_run_factor * restart_s,
            "waiting_cost": numbers["waiting_cost"] + _waiting_costs(columns, scenario),
        }
        self.ids, self.kinds, self.counts = columns.ids, columns.kinds, columns.counts
        self.numbers: dict[str, Floats] = {**columns.numbers, **own}
        self.others = {n: v for n, v in columns.others.items() if n not in CHANGING}
        self.has_batch = any(columns.others["batch"])
        self.same = {n: v[0] for n, v in self.others.items() if len(set(v)) == 1}


def _waiting_costs(columns: JobColumns, scenario: Scenario) -> Floats:
    """float64[J]: cost of a second of each job's waiting."""
    if not scenario.value_of_time:
        return np.zeros(len(columns.ids))
    weights = {team.name: team.weight for team in scenario.teams}
    jobs = zip(columns.others["team"], columns.counts["priority"].tolist(), strict=True)
    value = scenario.value_of_time
    return np.array([waiting_cost(value, weights.get(team, 1.0), p) for team, p in jobs])


class _Cut:
    """Constant columns of some rows, shared by rounds of the same jobs."""

    def __init__(self, whole: _Workload, rows: tuple[int, ...]) -> None:
        self.rows, self.at = rows, (at := np.array(rows, dtype=np.int64))
        self.ids, self.kinds = _picked(whole.ids, rows), _picked(whole.kinds, rows)
        self.position = {job: i for i, job in enumerate(self.ids)}
        self.numbers = Lazy(whole.numbers, lambda name: frozen(whole.numbers[name][at]))
        self.counts = Lazy(whole.counts, lambda name: frozen(whole.counts[name][at]))
        self.others = Lazy(whole.others, partial(_other, whole, rows))


def _other(whole: _Workload, rows: tuple[int, ...], name: str) -> tuple[Any, ...]:
    return (
        (whole.same[name],) * len(rows) if name in whole.same else _picked(whole.others[name], rows)
    )


class Lazy(dict[str, Values]):
    """Columns made on demand, since most policies read few.

    A dictionary, so that a present column costs no call; reading all columns makes them all.
    """

    def __init__(self, names: Collection[str], make: Callable[[str], Values]) -> None:
        super().__init__()
        self._names, self._make = names, make

    def __missing__(self, name: str) -> Values:
        if name not in self._names:
            raise KeyError(name)
        made = self[name] = self._make(name)
        return made

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def get(self, name: str, default: Any = None, /) -> Any:
        return self[name] if name in self._names else default

    def keys(self) -> dict_keys[str, Values]:
        return self._whole().keys()

    def values(self) -> dict_values[str, Values]:
        return self._whole().values()

    def items(self) -> dict_items[str, Values]:
        return self._whole().items()

    def _whole(self) -> dict[str, Values]:
        return {name: self[name] for name in self._names}


def _phases(
    runs: tuple[tuple[Running, ...], ...], unknown: tuple[bool, ...]
) -> tuple[JobPhase, ...]:
    if not unknown:
        return tuple([RUNS if run else WAITS for run in runs])
    waits = (JobPhase.PROFILING if is_unknown else JobPhase.WAITING for is_unknown in unknown)
    return tuple(JobPhase.RUNNING if run else wait for run, wait in zip(runs, waits, strict=True))


def _picked(values: tuple[Any, ...], rows: tuple[int, ...]) -> tuple[Any, ...]:
    return itemgetter(*rows)(values) if len(rows) > 1 else tuple(values[row] for row in rows)
