"""Launches of a run by column, so that a million of them cost megabytes."""

from array import array
from collections.abc import Mapping
from math import inf

import numpy as np

from controlplane.simulation.world.job_table import JobTable, Launch, SimulatedJob
from controlplane.simulation.world.outcome import Stays, Utilisation
from policies.contract.snapshot import Floats, Ints, RankPlacement


class Journal:
    """Launches in the order in which they began."""

    def __init__(self) -> None:
        self.row, self.start_steps, self.end_steps = array("q"), array("q"), array("q")
        self.start_s, self.end_s = array("d"), array("d")
        self.ranks: list[tuple[RankPlacement, ...]] = []
        self._known: dict[tuple[RankPlacement, ...], tuple[RankPlacement, ...]] = {}

    def begin(self, launch: Launch) -> None:
        launch.number = len(self.ranks)
        self.row.append(launch.row)
        self.start_steps.append(launch.start_steps)
        self.end_steps.append(-1)
        self.start_s.append(launch.start_s)
        self.end_s.append(inf)
        self.ranks.append(self._known.setdefault(launch.ranks, launch.ranks))

    def end(self, launch: Launch) -> None:
        self.end_s[launch.number] = launch.end_s
        self.end_steps[launch.number] = (
            launch.start_steps if launch.end_steps is None else launch.end_steps
        )

    def launch(self, number: int, job: str) -> Launch:
        """Return an ended launch."""
        start_s, steps = self.start_s[number], self.start_steps[number]
        ranks, row = self.ranks[number], self.row[number]
        launch = Launch(job, ranks, start_s, steps, start_s, 0.0, row=row, number=number)
        launch.end_s, launch.end_steps = self.end_s[number], self.end_steps[number]
        return launch

    def jobs(
        self, table: JobTable, under_way: Mapping[int, Launch], arrived: int
    ) -> dict[str, SimulatedJob]:
        """Return the jobs that have arrived with their launches; `under_way` by row."""
        of_job: dict[int, list[Launch]] = {row: [] for row in range(arrived)}
        for number, row in enumerate(self.row):
            now = under_way.get(row)
            if now is None or now.number != number:
                now = self.launch(number, table.columns.ids[row])
            of_job[row].append(now)
        return {table.columns.ids[row]: table.job(row, of) for row, of in of_job.items()}

    def stays(self, nodes: dict[str, int]) -> Stays:
        """Return all launches, a row per launch and node; `nodes`: rows of the nodes by id."""
        seats = [(i, seat) for i, ranks in enumerate(self.ranks) for seat in ranks]
        at = np.array([i for i, _ in seats], dtype=np.int64)
        return Stays(
            job=np.array(self.row, dtype=np.int64)[at],
            node=np.array([nodes[seat.node] for _, seat in seats], dtype=np.int64),
            devices=tuple(seat.devices for _, seat in seats),
            start_s=np.array(self.start_s)[at],
            end_s=np.array(self.end_s)[at],
        )

    def utilisation(self, gpus: int, *, shared: bool = False) -> Utilisation:
        """GPUs in use over time, at changes only; `shared`: several holders count once."""
        return self._steps(*(self._of_devices() if shared else self._of_launches()), gpus)

    def _of_launches(self) -> tuple[Floats, Ints]:
        """(float64[L + E] times, int64[L + E] changes of GPUs in use) of launches and ends."""
        held = np.array([sum(len(s.devices) for s in r) for r in self.ranks], dtype=np.int64)
        start_s, end_s = np.array(self.start_s), np.array(self.end_s)
        ended = np.isfinite(end_s)
        return np.concatenate([start_s, end_s[ended]]), np.concatenate([held, -held[ended]])

    def _of_devices(self) -> tuple[Floats, Ints]:
        """Changes of devices in use: +1 by the first holder, -1 after the last one."""
        seats = [
            (i, (seat.node, device))
            for i, ranks in enumerate(self.ranks)
            for seat in ranks
            for device in seat.devices
        ]
        numbers: dict[tuple[str, str], int] = {}
        launch = np.array([i for i, _ in seats], dtype=np.int64)
        devices = [numbers.setdefault(key, len(numbers)) for _, key in seats]
        device = np.array(devices, dtype=np.int64)
        times = np.concatenate([np.array(self.start_s)[launch], np.array(self.end_s)[launch]])
        change = np.repeat(np.array([1, -1], dtype=np.int64), len(seats))
        order = np.lexsort((-change, times, np.tile(device, 2)))
        times, change = times[order], change[order]
        holders = np.cumsum(change)
        turns = np.isfinite(times) & ((change > 0) & (holders == 1) | (change < 0) & (holders == 0))
        return times[turns], change[turns]

    @staticmethod
    def _steps(times: Floats, more: Ints, gpus: int) -> Utilisation:
        steps, at = np.unique(times, return_inverse=True)
        in_use = np.cumsum(np.bincount(at, more, len(steps))).astype(np.int64)
        changed = np.diff(in_use, prepend=0) != 0
        return Utilisation(steps[changed], in_use[changed], gpus)
