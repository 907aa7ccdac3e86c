"""Jobs and kinds of a snapshot, as columns of the workload with changes."""

from __future__ import annotations

from _collections_abc import dict_items, dict_keys, dict_values
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

import numpy as np

from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.cluster.scenario import Scenario
from controlplane.simulation.world.job_table import JobTable
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

DeviceTimes: TypeAlias = tuple[tuple[str, float], ...]
"""Device seconds that a job has received of each GPU type."""

Column: TypeAlias = Callable[[], tuple[Any, ...]]
"""Maker of a column, called if somebody reads the column."""

Values = TypeVar("Values")

RUNNING = JobPhase.RUNNING
WAITING = JobPhase.WAITING
"""Both looked up once, because enum members are slow to look up on Python 3.11."""

CHANGING_COLUMNS = ("phase", "running", "received_s")


class SnapshotBuilder:
    """Builder of snapshots' jobs; columns of equal values are built once.

    `profiling`: kinds that are being measured, whose jobs wait for that.
    """

    def __init__(
        self,
        table: JobTable,
        kinds: tuple[KindView, ...],
        scenario: Scenario,
        predictions: Predictions,
    ) -> None:
        self.table = table
        self.columns = table.columns
        self.predictions = predictions
        self.round_jobs = scenario.round_jobs
        self.gpu_type = {node.id: node.gpu_type for node in scenario.nodes}
        self.profiling: set[str] = set()
        self._workload = _WorkloadColumns(table, scenario)
        self._last_rows: _RowColumns | None = None
        received = enumerate(table.columns.others["received_s"])
        self._received: dict[int, DeviceTimes] = {row: times for row, times in received if times}
        self._kinds = {kind.id: kind for kind in kinds}
        self._kind_index = {kind.id: i for i, kind in enumerate(kinds)}
        self._jobs_of_kind: Counter[str] = Counter()
        self._seen_kinds: set[str] = set()
        self._kinds_shown: tuple[KindView, ...] | None = None

    def enter(self, row: int) -> bool:
        """Add a job; return True if its kind is new."""
        kind = self.columns.kinds[row]
        is_new = kind not in self._seen_kinds
        self._seen_kinds.add(kind)
        if not self._jobs_of_kind[kind]:
            self._kinds_shown = None
        self._jobs_of_kind[kind] += 1
        return is_new

    def leave(self, row: int) -> None:
        """Remove a job that has ended."""
        kind = self.columns.kinds[row]
        self._jobs_of_kind[kind] -= 1
        if not self._jobs_of_kind[kind]:
            del self._jobs_of_kind[kind]
            self._kinds_shown = None
        self._received.pop(row, None)

    def receive(self, launch: Launch) -> None:
        """Add the time of an ended launch to its job."""
        before = self._received.get(launch.row, ())
        self._received[launch.row] = self._with(before, launch.ranks, launch.start_s, launch.end_s)

    def learn(self, changed: Callable[[Iterable[KindView]], Iterable[KindView]]) -> None:
        """Replace the kinds that `changed` yields of all."""
        for kind in list(changed(self._kinds.values())):
            self._kinds[kind.id] = kind
            self._kinds_shown = None

    def kinds(self) -> tuple[KindView, ...]:
        """Return the kinds of present jobs, in the scenario's order."""
        if self._kinds_shown is None:
            present = sorted(self._jobs_of_kind, key=self._kind_index.__getitem__)
            self._kinds_shown = tuple(self._kinds[kind] for kind in present)
        return self._kinds_shown

    def rows(
        self, queue: Sequence[int], active: Sequence[int], number: int, *, shows_queue_only: bool
    ) -> tuple[int, ...]:
        """Return the jobs that the round of this number sees, rising.

        `queue`: waiting jobs; `active`: these and the running ones.
        """
        most = self.round_jobs
        if most is None or len(queue) <= most:
            return tuple(queue if shows_queue_only else active)
        seen = queue_window(queue, most, number, self.columns.numbers["due_s"])
        if shows_queue_only:
            return tuple(seen)
        waiting = set(queue)
        running = [row for row in active if row not in waiting]
        return tuple(sorted([*seen, *running]))

    def jobs(
        self,
        rows: tuple[int, ...],
        running: Mapping[int, tuple[Running, ...]] | None,
        launches: Mapping[int, Launch],
        now_s: float,
    ) -> Jobs:
        """Return these jobs as they are now. `running`: by row, None if hidden."""
        # 1. Constant columns: those of the round before, if it saw the same jobs.
        constant = self._last_rows
        if constant is None or constant.rows != rows:
            constant = _RowColumns(self._workload, rows)
        self._last_rows = constant

        # 2. Progress. Nobody knows how long a batch job will run: it has one step or none left.
        if running is None:
            done = self.table.steps_done[constant.index]
        else:
            done = self.table.steps_at(constant.index, now_s)
        remaining = np.maximum(0.0, constant.numbers["total_steps"] - done)
        if self._workload.has_batch:
            is_batch = constant.others["batch"]
            remaining = np.where(is_batch, np.minimum(1.0, remaining), remaining)
        numbers = LazyColumns(self.columns.numbers, constant.numbers.__getitem__)
        numbers["remaining_steps"] = frozen(remaining)

        # 3. Run times as they are predicted now.
        if self.predictions.any:
            expected_run_s = self.predictions.expected_run_s(constant.index, now_s)
            walltime_s = self.predictions.shown_walltime_s(constant.index)
            numbers["expected_run_s"] = frozen(expected_run_s)
            numbers["walltime_s"] = frozen(walltime_s)

        # 4. Where jobs run, and what they have received.
        changing = self._changing(rows, running, launches, now_s)

        def make_column(name: str) -> tuple[Any, ...]:
            return changing[name]() if name in changing else constant.others[name]

        others = LazyColumns(self.columns.others, make_column)
        columns = JobColumns(
            constant.ids, constant.kinds, numbers, constant.counts, others, self.columns.gpus_only
        )
        return Jobs(columns, constant.position)

    def _changing(
        self,
        rows: tuple[int, ...],
        running: Mapping[int, tuple[Running, ...]] | None,
        launches: Mapping[int, Launch],
        now_s: float,
    ) -> dict[str, Column]:
        """Return makers of the columns that change from round to round."""
        size = len(rows)
        runs: tuple[tuple[Running, ...], ...] = tuple(repeat((), size))
        if running:
            runs = tuple([running.get(row, ()) for row in rows])

        # Launches that are being stopped: their jobs wait, and go on receiving device time.
        stopping: tuple[Launch | None, ...] = ()
        if running is not None and len(launches) > len(running):
            by_row = {row: launch for row, launch in launches.items() if not launch.goes_on}
            stopping = tuple(by_row.get(row) for row in rows)

        before: tuple[DeviceTimes, ...] = ()
        if self._received:
            before = tuple([self._received.get(row, ()) for row in rows])
        return {
            "running": lambda: runs,
            "phase": partial(_phases, runs, self._are_profiled(rows)),
            "received_s": partial(self._received_until, before, runs, stopping, now_s),
            "expected_source": partial(self.predictions.sources, rows),
        }

    def _are_profiled(self, rows: tuple[int, ...]) -> tuple[bool, ...]:
        """Return whether each job waits for its kind to be measured; () if none does."""
        if not self.profiling:
            return ()
        return tuple(kind in self.profiling for kind in _picked(self.columns.kinds, rows))

    def _received_until(
        self,
        before: tuple[DeviceTimes, ...],
        runs: tuple[tuple[Running, ...], ...],
        stopping: tuple[Launch | None, ...],
        now_s: float,
    ) -> tuple[DeviceTimes, ...]:
        """Return the device times of each job: those of ended launches, and of the present one."""
        received = list(before or repeat((), len(runs)))
        for i, of_job in enumerate(runs):
            for run in of_job:
                received[i] = self._with(received[i], run.ranks, run.since_s, now_s)
        for i, launch in enumerate(stopping):
            if launch is not None:
                received[i] = self._with(received[i], launch.ranks, launch.start_s, now_s)
        return tuple(received)

    def _with(
        self, received: DeviceTimes, ranks: tuple[RankPlacement, ...], start_s: float, end_s: float
    ) -> DeviceTimes:
        """Return the device times received, with those of a placement."""
        total = dict(received)
        for rank in ranks:
            if rank.devices:
                gpu_type = self.gpu_type[rank.node]
                seconds = (end_s - start_s) * len(rank.devices)
                total[gpu_type] = total.get(gpu_type, 0.0) + seconds * rank.share
        if len(total) > len(received):
            return tuple(sorted(total.items()))
        return tuple(total.items())


class _WorkloadColumns:
    """Constant columns of a whole workload. `constants`: values of columns that have only one."""

    def __init__(self, table: JobTable, scenario: Scenario) -> None:
        columns = table.columns
        self.ids = columns.ids
        self.kinds = columns.kinds
        self.counts = columns.counts
        restart_s = table.restart_cost_s + scenario.launch_s + scenario.stop_s
        min_run_s = columns.numbers["min_run_s"] + scenario.min_run_factor * restart_s
        waiting_costs = columns.numbers["waiting_cost"] + _waiting_costs(columns, scenario)
        self.numbers: dict[str, Floats] = {
            **columns.numbers,
            "total_steps": table.total_steps.astype(np.float64),
            "restart_cost_s": restart_s,
            "min_run_s": min_run_s,
            "waiting_cost": waiting_costs,
        }
        others = columns.others
        self.others = {name: others[name] for name in others if name not in CHANGING_COLUMNS}
        self.has_batch = any(others["batch"])
        self.constants: dict[str, Any] = {}
        for name, values in self.others.items():
            if len(set(values)) == 1:
                self.constants[name] = values[0]


def _waiting_costs(columns: JobColumns, scenario: Scenario) -> Floats:
    """float64[J]: cost of a second of each job's waiting."""
    value = scenario.value_of_time
    if not value:
        return np.zeros(len(columns.ids))
    weights = {team.name: team.weight for team in scenario.teams}
    jobs = zip(columns.others["team"], columns.counts["priority"].tolist(), strict=True)
    return np.array([waiting_cost(value, weights.get(team, 1.0), p) for team, p in jobs])


class _RowColumns:
    """Constant columns of some rows, shared by rounds of the same jobs.

    `index`: the rows as int64; `position`: place of each job among them.
    """

    def __init__(self, workload: _WorkloadColumns, rows: tuple[int, ...]) -> None:
        self.rows = rows
        self.index = index = np.array(rows, dtype=np.int64)
        self.ids = _picked(workload.ids, rows)
        self.kinds = _picked(workload.kinds, rows)
        self.position = {job: i for i, job in enumerate(self.ids)}
        self.numbers = LazyColumns(
            workload.numbers, lambda name: frozen(workload.numbers[name][index])
        )
        self.counts = LazyColumns(
            workload.counts, lambda name: frozen(workload.counts[name][index])
        )
        self.others = LazyColumns(workload.others, partial(_column_of_rows, workload, rows))


def _column_of_rows(
    workload: _WorkloadColumns, rows: tuple[int, ...], name: str
) -> tuple[Any, ...]:
    """Return the values of a column that is no array, for some rows."""
    if name in workload.constants:
        return (workload.constants[name],) * len(rows)
    return _picked(workload.others[name], rows)


class LazyColumns(dict[str, Values]):
    """Columns made on demand, since most policies read few.

    A dictionary, so that a present column costs no call; reading all columns makes them all.
    """

    def __init__(self, names: Collection[str], make: Callable[[str], Values]) -> None:
        super().__init__()
        self._names = names
        self._make = make

    def __missing__(self, name: str) -> Values:
        if name not in self._names:
            raise KeyError(name)
        made = self._make(name)
        self[name] = made
        return made

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return a column; the default if there is none of this name."""
        return self[name] if name in self._names else default

    def keys(self) -> dict_keys[str, Values]:
        """Return the names of all columns."""
        return self._all().keys()

    def values(self) -> dict_values[str, Values]:
        """Return all columns."""
        return self._all().values()

    def items(self) -> dict_items[str, Values]:
        """Return all columns with their names."""
        return self._all().items()

    def _all(self) -> dict[str, Values]:
        return {name: self[name] for name in self._names}


def _phases(
    runs: tuple[tuple[Running, ...], ...], are_profiled: tuple[bool, ...]
) -> tuple[JobPhase, ...]:
    """Return the phase of each job. `are_profiled`: () if no job waits for a measurement."""
    if not are_profiled:
        return tuple([RUNNING if run else WAITING for run in runs])
    phases = []
    for run, is_profiled in zip(runs, are_profiled, strict=True):
        if run:
            phases.append(RUNNING)
        else:
            phases.append(JobPhase.PROFILING if is_profiled else WAITING)
    return tuple(phases)


def _picked(values: tuple[Any, ...], rows: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the values in these rows."""
    if len(rows) > 1:
        picked: tuple[Any, ...] = itemgetter(*rows)(values)
        return picked
    return tuple(values[row] for row in rows)
