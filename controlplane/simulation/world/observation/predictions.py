"""Expected run times of a workload's batch jobs and jobs without GPUs, learnt as these end."""

from __future__ import annotations

from collections import defaultdict
from math import inf, isfinite
from typing import TYPE_CHECKING

import numpy as np

from controlplane.simulation.world.job_table import Launch
from controlplane.simulation.world.launching import next_noise, time_to_start_s
from policies.contract.snapshot import Bools, Floats, Ints
from profiling.run_times.errors import Ended
from profiling.run_times.predictors import (
    ASKED,
    LAST_TWO,
    ORACLE,
    USER,
    WALLTIME,
    Features,
    Key,
    Prediction,
    RunTimes,
    predict,
    still_expected,
)

if TYPE_CHECKING:
    from controlplane.simulation.world.world import SimulatedWorld


class Predictions:
    """Predictions of a world's jobs by row: `run_s` (inf: unknown) and `source`.

    Those of waiting jobs follow what has ended; a launch keeps its own. Jobs with a speed have
    none, and jobs that come with an expected run time keep it. `ended`: predictions at launches,
    with what became of them.
    """

    def __init__(self, world: SimulatedWorld) -> None:
        table, columns = world.table, world.table.columns
        self._world, self._columns, self._table = world, columns, table
        self._predictor = world.switches.predictor
        batch = np.array(columns.others["batch"], dtype=np.bool_)
        self.of_batch: Bools = batch | (columns.counts["gpus_max"] == 0)
        self.any = bool(self.of_batch.any())
        self.walltime_s, given_s = columns.numbers["walltime_s"], columns.numbers["expected_run_s"]
        unknown = self.of_batch & ~np.isfinite(given_s)
        self.run_s: Floats = np.where(unknown, self.walltime_s, given_s)
        self.source = list(columns.others["expected_source"])
        for row in np.flatnonzero(unknown & np.isfinite(self.run_s)).tolist():
            self.source[row] = WALLTIME
        self._predicted: Bools = unknown & (self._predictor != WALLTIME)
        self._since_s = np.full(len(table), inf)
        self._told: dict[int, Prediction] = {}
        self._known = RunTimes()
        self._watched = defaultdict[Key, set[int]](set)
        self.ended: list[Ended] = []

    def wait(self, row: int) -> None:
        """Predict a job that waits from now on, and again whenever a run time bears on it."""
        self._since_s[row] = inf
        if not self._predicted[row]:
            return
        if self._predictor == ORACLE:
            self.run_s[row], self.source[row] = self._true_run_s(row), ORACLE
            return
        self._predict(row)

    def begin(self, launch: Launch) -> None:
        """Keep the prediction of a job that is launched."""
        row = launch.row
        self._since_s[row] = launch.start_s
        if self.of_batch[row]:
            self._told[row] = Prediction(float(self.run_s[row]), self.source[row])
            self._forget(row)

    def end(self, launch: Launch) -> None:
        """Learn the run time of a job that has ended by itself or at its limit."""
        row, run_s = launch.row, launch.end_s - launch.start_s
        if not self.of_batch[row]:
            return
        self._forget(row)
        told = self._told.pop(row)
        self.run_s[row], self.source[row] = told
        if isfinite(told.run_s):
            user = self._columns.others["user"][row]
            self.ended.append(Ended(user, told.source, told.run_s, run_s))
        whole = not self._columns.others["preemptible"][row] or self._table.launched[row] == 1
        if whole and self._learns:
            job = self._features(row)
            self._known.add(job, run_s)
            watching = [self._watched.get(key, ()) for key in job.groups()]
            for other in sorted({other for rows in watching for other in rows}):
                self._predict(other)

    @property
    def _learns(self) -> bool:
        return self._predictor not in (WALLTIME, ORACLE)

    def _forget(self, row: int) -> None:
        """Stop predicting a job anew."""
        if self._learns:
            for key in self._features(row).groups():
                if (watching := self._watched.get(key)) is not None:
                    watching.discard(row)

    def expected_run_s(self, rows: Ints, now_s: float) -> Floats:
        """float64[len(rows)]: whole run times expected now, also of those outlived."""
        run_s: Floats = self.run_s[rows]
        ran_s, walltime_s = now_s - self._since_s[rows], self.walltime_s[rows]
        for i in np.flatnonzero((ran_s >= run_s) & (run_s < walltime_s)).tolist():
            run_s[i] = still_expected(float(run_s[i]), float(ran_s[i]), float(walltime_s[i]))
        return run_s

    def shown_walltime_s(self, rows: Ints) -> Floats:
        """float64[len(rows)]: walltimes; by an oracle not less than the true run times."""
        walltime_s = self.walltime_s[rows]
        if self._predictor != ORACLE:
            return walltime_s
        known = np.where(self.of_batch[rows], self.run_s[rows], 0.0)
        return np.where(np.isfinite(known), np.maximum(walltime_s, known), walltime_s)

    def sources(self, rows: tuple[int, ...]) -> tuple[str, ...]:
        return tuple([self.source[row] for row in rows])

    def _true_run_s(self, row: int) -> float:
        """Return how long a job's next launch will run, wherever it is."""
        fastest_s = float(self._world.fastest_s[row])
        return time_to_start_s(self._world, row) + fastest_s / next_noise(self._world, row)

    def _predict(self, row: int) -> None:
        job, predictor = self._features(row), self._predictor
        assert predictor != ORACLE
        found = predict(predictor, job, self._known.newest)
        self.run_s[row], self.source[row] = found
        for key in job.groups():
            if (key[0] in USER) == (predictor == LAST_TWO):
                self._watched[key].add(row)
                if key[0] == found.source:
                    break  # less specific groups do not matter

    def _features(self, row: int) -> Features:
        columns = self._columns
        numbers, counts, others = columns.numbers, columns.counts, columns.others
        asked = {n: float((numbers if n in numbers else counts)[n][row]) for n in ASKED}
        return Features.of(
            user=others["user"][row],
            name=others["name"][row],
            kind=columns.kinds[row],
            amounts={**asked, **dict(others["resources"][row])},
            steps=0.0 if others["batch"][row] else float(self._table.total_steps[row]),
            walltime_s=float(self.walltime_s[row]),
        )
