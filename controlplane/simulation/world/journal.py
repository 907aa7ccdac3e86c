"""All launches of a simulated run, kept by column, so that a million of them cost megabytes."""

from array import array
from collections.abc import Mapping
from math import inf

import numpy as np

from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.world.job_table import JobTable, SimulatedJob
from controlplane.simulation.world.outcome import Stays, Utilisation
from policies.contract.snapshot import Floats, Ints, RankPlacement
from policies.placement.speed import devices_of


class Journal:
    """Launches in the order in which they began: each column has an entry for each launch.

    `row`: row of the job in its table. `start_steps`, `end_steps`: the job's steps done; -1 for an
    end that has not come. `start_s`, `end_s`: virtual seconds; inf for such an end. `ranks`: seats.
    """

    def __init__(self) -> None:
        self.row = array("q")
        self.start_steps = array("q")
        self.end_steps = array("q")
        self.start_s = array("d")
        self.end_s = array("d")
        self.ranks: list[tuple[RankPlacement, ...]] = []
        self._equal_ranks: dict[tuple[RankPlacement, ...], tuple[RankPlacement, ...]] = {}
        """The first of equal seats of launches, which all of them share to save memory."""

    def begin(self, launch: Launch) -> None:
        """Add a launch, and give it its number."""
        launch.number = len(self.ranks)
        self.row.append(launch.row)
        self.start_steps.append(launch.start_steps)
        self.end_steps.append(-1)
        self.start_s.append(launch.start_s)
        self.end_s.append(inf)
        self.ranks.append(self._equal_ranks.setdefault(launch.ranks, launch.ranks))

    def end(self, launch: Launch) -> None:
        """Record the end of a launch."""
        end_steps = launch.start_steps if launch.end_steps is None else launch.end_steps
        self.end_s[launch.number] = launch.end_s
        self.end_steps[launch.number] = end_steps

    def launch(self, number: int, job: str) -> Launch:
        """Return an ended launch by its number; `job`: its job's id."""
        start_s = self.start_s[number]
        launch = Launch(
            job,
            self.ranks[number],
            start_s,
            self.start_steps[number],
            first_step_s=start_s,
            steps_per_s=0.0,
            row=self.row[number],
            number=number,
        )
        launch.end_s = self.end_s[number]
        launch.end_steps = self.end_steps[number]
        return launch

    def jobs(
        self, table: JobTable, under_way: Mapping[int, Launch], arrived: int
    ) -> dict[str, SimulatedJob]:
        """Return the jobs of the first `arrived` rows with their launches, by id.

        `under_way`: launches that have not ended, by row of the job.
        """
        ids = table.columns.ids
        launches_of: dict[int, list[Launch]] = {row: [] for row in range(arrived)}
        for number, row in enumerate(self.row):
            launch = under_way.get(row)
            if launch is None or launch.number != number:
                launch = self.launch(number, ids[row])
            launches_of[row].append(launch)
        return {ids[row]: table.job(row, launches) for row, launches in launches_of.items()}

    def stays(self, nodes: dict[str, int]) -> Stays:
        """Return the seats of all launches, in columns; `nodes`: numbers of the nodes by id."""
        numbers = []
        seats = []
        for number, ranks in enumerate(self.ranks):
            for seat in ranks:
                numbers.append(number)
                seats.append(seat)
        launch = np.array(numbers, dtype=np.int64)
        return Stays(
            job=np.array(self.row, dtype=np.int64)[launch],
            node=np.array([nodes[seat.node] for seat in seats], dtype=np.int64),
            devices=tuple(seat.devices for seat in seats),
            start_s=np.array(self.start_s)[launch],
            end_s=np.array(self.end_s)[launch],
        )

    def utilisation(self, gpus: int, *, shared: bool = False) -> Utilisation:
        """Return the GPUs in use over time, at changes only.

        `gpus`: all GPUs of the cluster. `shared`: devices with several holders count once.
        """
        times, changes = self._changes_of_devices() if shared else self._changes_of_launches()
        steps, step_of_change = np.unique(times, return_inverse=True)
        changes_of_steps = np.bincount(step_of_change, changes, len(steps))
        in_use = np.cumsum(changes_of_steps).astype(np.int64)
        is_change = np.diff(in_use, prepend=0) != 0
        return Utilisation(steps[is_change], in_use[is_change], gpus)

    def _changes_of_launches(self) -> tuple[Floats, Ints]:
        """Return times and changes of GPUs in use, of L launches and E ends.

        float64[L + E] in seconds and int64[L + E], not sorted.
        """
        gpus = [sum(len(seat.devices) for seat in ranks) for ranks in self.ranks]
        held = np.array(gpus, dtype=np.int64)
        start_s = np.array(self.start_s)
        end_s = np.array(self.end_s)
        ended = np.isfinite(end_s)
        return np.concatenate([start_s, end_s[ended]]), np.concatenate([held, -held[ended]])

    def _changes_of_devices(self) -> tuple[Floats, Ints]:
        """Return times and changes of devices in use: +1 by a first holder, -1 after a last one."""
        # 1. Who held which device: launches and devices by number.
        numbers: dict[tuple[str, str], int] = {}
        launches = []
        devices = []
        for number, ranks in enumerate(self.ranks):
            for key in devices_of(ranks):
                launches.append(number)
                devices.append(numbers.setdefault(key, len(numbers)))
        launch = np.array(launches, dtype=np.int64)
        device = np.array(devices, dtype=np.int64)

        # 2. Begins and ends of these, by device and time; at one moment begins come first.
        times = np.concatenate([np.array(self.start_s)[launch], np.array(self.end_s)[launch]])
        change = np.repeat(np.array([1, -1], dtype=np.int64), len(launches))
        order = np.lexsort((-change, times, np.tile(device, 2)))
        times = times[order]
        change = change[order]

        # 3. Those by which a device gets its first holder, or loses its last one.
        holders = np.cumsum(change)
        is_first = (change > 0) & (holders == 1)
        is_last = (change < 0) & (holders == 0)
        turns = np.isfinite(times) & (is_first | is_last)
        return times[turns], change[turns]
