"""Jobs and kinds as a snapshot shows them: columns cut out of the workload's, with what has changed since put in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from controlplane.simulation.jobs import JobBook, Launch
from controlplane.simulation.scene import Scene
from controlplane.simulation.window import window
from policies.job_columns import frozen
from policies.snapshot import JobColumns, JobPhase, Jobs, KindView, Running

Received: TypeAlias = tuple[tuple[str, float], ...]
Column: TypeAlias = Callable[[], tuple[Any, ...]]

CHANGING = ("phase", "running", "received_s")


class Shown:
    """What is shown of the jobs that are in the system. Columns whose values are all the same are never looked at again."""

    def __init__(self, book: JobBook, kinds: tuple[KindView, ...], scene: Scene) -> None:
        self.book, self.columns = book, book.columns
        self.round_jobs, self.restart_cost_s = scene.round_jobs, scene.restart_cost_s
        self.gpu_type = {n.id: n.gpu_type for n in scene.nodes}
        self.profiling: set[str] = set()
        self._same = {n: v[0] for n, v in self.columns.others.items() if n not in CHANGING and len(set(v)) == 1}
        self._total_steps = book.total_steps.astype(np.float64)
        self._received: dict[int, Received] = {}
        self._kinds = {k.id: k for k in kinds}
        self._place = {k.id: i for i, k in enumerate(kinds)}
        self._present: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._kinds_shown: tuple[KindView, ...] | None = None

    def enter(self, row: int) -> bool:
        """A job comes in; whether its kind has never been seen before."""
        kind = self.columns.kinds[row]
        is_new = kind not in self._seen
        self._seen.add(kind)
        if not self._present[kind]:
            self._kinds_shown = None
        self._present[kind] += 1
        return is_new

    def leave(self, row: int) -> None:
        """A job is done."""
        kind = self.columns.kinds[row]
        self._present[kind] -= 1
        if not self._present[kind]:
            del self._present[kind]
            self._kinds_shown = None
        self._received.pop(row, None)

    def receive(self, launch: Launch) -> None:
        """A launch has ended: what its job has received so far."""
        self._received[launch.row] = _with(
            self._received.get(launch.row, ()), self._of_stay(launch.ranks, launch.start_s, launch.end_s)
        )

    def kinds(self) -> tuple[KindView, ...]:
        """The kinds of the jobs that are in the system, in the scene's order."""
        if self._kinds_shown is None:
            present = sorted(self._present, key=self._place.__getitem__)
            self._kinds_shown = tuple(self._kinds[k] for k in present)
        return self._kinds_shown

    def rows(self, queue: Sequence[int], active: Sequence[int], number: int, *, hides_running: bool) -> tuple[int, ...]:
        """Jobs that the round of this number sees, rising."""
        most = self.round_jobs
        if most is None or len(queue) <= most:
            return tuple(queue if hides_running else active)
        seen = window(queue, most, number, self.columns.numbers["due_s"])
        if hides_running:
            return tuple(seen)
        waits = set(queue)
        return tuple(sorted([*seen, *(row for row in active if row not in waits)]))

    def jobs(
        self, rows: tuple[int, ...], running: Mapping[int, tuple[Running, ...]] | None, launches: Mapping[int, Launch], now_s: float
    ) -> Jobs:
        """These jobs as they are now. `running`: what is committed, by row, None where that is hidden and none of it is among these
        jobs; `launches`: what holds devices, by row.
        """
        whole, at, size = self.columns, np.array(rows, dtype=np.int64), len(rows)
        total = self._total_steps[at]
        left = total - (self.book.steps_done[at] if running is None else self.book.steps_at(at, now_s))
        changed = {
            "remaining_steps": np.maximum(0.0, left),
            "total_steps": total,
            "restart_cost_s": np.full(size, self.restart_cost_s),
        }
        numbers = {n: frozen(changed[n] if n in changed else c[at]) for n, c in whole.numbers.items()}
        counts = {n: frozen(c[at]) for n, c in whole.counts.items()}
        others: dict[str, Column] = {
            n: partial(_repeated, self._same[n], size) if n in self._same else partial(_picked, v, rows)
            for n, v in whole.others.items()
        }
        others |= self._changing(rows, running, launches, now_s)
        return Jobs(JobColumns(_picked(whole.ids, rows), _picked(whole.kinds, rows), numbers, counts, Lazy(others)))

    def _changing(
        self, rows: tuple[int, ...], running: Mapping[int, tuple[Running, ...]] | None, launches: Mapping[int, Launch], now_s: float
    ) -> dict[str, Column]:
        size = len(rows)
        runs = tuple(running.get(row, ()) for row in rows) if running else tuple(repeat((), size))
        unknown = self._unknown(rows)
        before = tuple(self._received.get(row, ()) for row in rows) if self._received else ()
        held: tuple[Launch | None, ...] = ()
        if running is not None and len(launches) > len(running):
            stopping = {row: now for row, now in launches.items() if not now.goes_on}
            held = tuple(stopping.get(row) for row in rows)
        return {
            "running": lambda: runs,
            "phase": partial(_phases, runs, unknown),
            "received_s": partial(self._received_by, before, runs, held, now_s),
        }

    def _unknown(self, rows: tuple[int, ...]) -> tuple[bool, ...]:
        if not self.profiling:
            return ()
        return tuple(kind in self.profiling for kind in _picked(self.columns.kinds, rows))

    def _received_by(
        self, before: tuple[Received, ...], runs: tuple[tuple[Running, ...], ...], held: tuple[Launch | None, ...], now_s: float
    ) -> tuple[Received, ...]:
        def of(i: int) -> Received:
            received = before[i] if before else ()
            for run in runs[i]:
                received = _with(received, self._of_stay(run.ranks, run.since_s, now_s))
            stopping = held[i] if held else None
            return received if stopping is None else _with(received, self._of_stay(stopping.ranks, stopping.start_s, now_s))

        return tuple(of(i) for i in range(len(runs)))

    def _of_stay(self, ranks: Any, start_s: float, end_s: float) -> Received:
        return tuple((self.gpu_type[seat.node], (end_s - start_s) * len(seat.devices) * seat.share) for seat in ranks)


class Lazy(Mapping[str, tuple[Any, ...]]):
    """Columns that are made when they are asked for: most policies look at few of them."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns
        self._made: dict[str, tuple[Any, ...]] = {}

    def __getitem__(self, name: str) -> tuple[Any, ...]:
        if name not in self._made:
            self._made[name] = self._columns[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def _with(received: Received, more: Received) -> Received:
    if not received and len(more) == 1:
        return more
    total: dict[str, float] = defaultdict(float)
    for gpu_type, seconds in (*received, *more):
        total[gpu_type] += seconds
    return tuple(sorted(total.items()))


def _phases(runs: tuple[tuple[Running, ...], ...], unknown: tuple[bool, ...]) -> tuple[JobPhase, ...]:
    if not unknown:
        return tuple(JobPhase.RUNNING if run else JobPhase.WAITING for run in runs)
    waits = (JobPhase.PROFILING if is_unknown else JobPhase.WAITING for is_unknown in unknown)
    return tuple(JobPhase.RUNNING if run else wait for run, wait in zip(runs, waits, strict=True))


def _picked(values: tuple[Any, ...], rows: tuple[int, ...]) -> tuple[Any, ...]:
    return itemgetter(*rows)(values) if len(rows) > 1 else tuple(values[row] for row in rows)


def _repeated(value: Any, size: int) -> tuple[Any, ...]:
    return tuple(repeat(value, size))
