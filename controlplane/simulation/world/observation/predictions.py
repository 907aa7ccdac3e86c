"""Expected run times of a workload's batch jobs and jobs without GPUs, learnt as these end."""

from collections import defaultdict
from math import inf, isfinite

import numpy as np

from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.switches import AnyPredictor
from controlplane.simulation.world.job_table import JobTable
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


class Predictions:
    """Predictions of jobs by row: `run_s` (inf: unknown) and `source`.

    Those of waiting jobs follow what has ended; a launch keeps its own. Jobs with a speed have
    none, and jobs that come with an expected run time keep it. `ended`: predictions at launches,
    with what became of them. `needs_true_run_s`: the predictor is the oracle, which is told how
    long the next launch of a waiting job will run.
    """

    def __init__(self, table: JobTable, predictor: AnyPredictor) -> None:
        columns = table.columns
        self._table = table
        self._columns = columns
        self._predictor = predictor
        self.needs_true_run_s = predictor == ORACLE
        self._learns = predictor not in (WALLTIME, ORACLE)
        is_batch = np.array(columns.others["batch"], dtype=np.bool_)
        self.covered: Bools = is_batch | (columns.counts["gpus_max"] == 0)
        """Jobs without a known speed, which have predictions."""
        self.any = bool(self.covered.any())
        self.walltime_s = columns.numbers["walltime_s"]

        # Jobs come with an expected run time, or else with their walltime as one.
        given_s = columns.numbers["expected_run_s"]
        unknown = self.covered & ~np.isfinite(given_s)
        self.run_s: Floats = np.where(unknown, self.walltime_s, given_s)
        self.source = list(columns.others["expected_source"])
        for row in np.flatnonzero(unknown & np.isfinite(self.run_s)).tolist():
            self.source[row] = WALLTIME

        self._predicted: Bools = unknown & (predictor != WALLTIME)
        """Jobs whose expectation the predictor replaces."""
        self._since_s = np.full(len(table), inf)
        """Starts of running jobs; inf for others."""
        self._at_launch: dict[int, Prediction] = {}
        self._run_times = RunTimes()
        self._watching: defaultdict[Key, set[int]] = defaultdict(set)
        """Waiting jobs whose prediction a run time of the group may change."""
        self.ended: list[Ended] = []

    def wait(self, row: int, true_run_s: float = inf) -> None:
        """Predict a job that waits from now on, and again whenever a run time bears on it."""
        self._since_s[row] = inf
        if not self._predicted[row]:
            return
        if self.needs_true_run_s:
            self.run_s[row] = true_run_s
            self.source[row] = ORACLE
            return
        self._predict(row)

    def begin(self, launch: Launch) -> None:
        """Keep the prediction of a job that is launched."""
        row = launch.row
        self._since_s[row] = launch.start_s
        if self.covered[row]:
            self._at_launch[row] = Prediction(float(self.run_s[row]), self.source[row])
            self._stop_watching(row)

    def end(self, launch: Launch) -> None:
        """Learn the run time of a job that has ended by itself or at its limit."""
        row = launch.row
        if not self.covered[row]:
            return
        run_s = launch.end_s - launch.start_s

        # 1. Compare it with the prediction at the launch, which the job keeps.
        self._stop_watching(row)
        prediction = self._at_launch.pop(row)
        self.run_s[row] = prediction.run_s
        self.source[row] = prediction.source
        if isfinite(prediction.run_s):
            user = self._columns.others["user"][row]
            self.ended.append(Ended(user, prediction.source, prediction.run_s, run_s))

        # 2. Predict like jobs anew, unless this launch did only a part of the job.
        is_whole = not self._columns.others["preemptible"][row] or self._table.launched[row] == 1
        if is_whole and self._learns:
            features = self._features(row)
            self._run_times.add(features, run_s)
            concerned = set[int]()
            for group in features.groups():
                concerned.update(self._watching.get(group, ()))
            for other in sorted(concerned):
                self._predict(other)

    def expected_run_s(self, rows: Ints, now_s: float) -> Floats:
        """float64[len(rows)]: whole run times expected now, also of those outlived."""
        run_s: Floats = self.run_s[rows]
        ran_s = now_s - self._since_s[rows]
        walltime_s = self.walltime_s[rows]
        outlived = (ran_s >= run_s) & (run_s < walltime_s)
        for i in np.flatnonzero(outlived).tolist():
            run_s[i] = still_expected(float(run_s[i]), float(ran_s[i]), float(walltime_s[i]))
        return run_s

    def shown_walltime_s(self, rows: Ints) -> Floats:
        """float64[len(rows)]: walltimes; by an oracle not less than the true run times."""
        walltime_s = self.walltime_s[rows]
        if not self.needs_true_run_s:
            return walltime_s
        known = np.where(self.covered[rows], self.run_s[rows], 0.0)
        return np.where(np.isfinite(known), np.maximum(walltime_s, known), walltime_s)

    def sources(self, rows: tuple[int, ...]) -> tuple[str, ...]:
        """Return the sources of these jobs' predictions."""
        return tuple([self.source[row] for row in rows])

    def _predict(self, row: int) -> None:
        """Predict a waiting job, and watch the groups whose run times may change that."""
        assert self._predictor != ORACLE
        features = self._features(row)
        prediction = predict(self._predictor, features, self._run_times.newest)
        self.run_s[row] = prediction.run_s
        self.source[row] = prediction.source
        for group in features.groups():
            is_of_user = group[0] in USER
            if is_of_user == (self._predictor == LAST_TWO):
                self._watching[group].add(row)
                if group[0] == prediction.source:
                    break  # less specific groups do not matter

    def _stop_watching(self, row: int) -> None:
        """Stop predicting a job anew."""
        if self._learns:
            for group in self._features(row).groups():
                self._watching.get(group, set()).discard(row)

    def _features(self, row: int) -> Features:
        """Return the facts by which a job's run time is predicted."""
        columns = self._columns
        others = columns.others
        amounts = dict[str, float]()
        for name in ASKED:
            column = columns.numbers if name in columns.numbers else columns.counts
            amounts[name] = float(column[name][row])
        amounts.update(others["resources"][row])
        return Features.of(
            user=others["user"][row],
            name=others["name"][row],
            kind=columns.kinds[row],
            amounts=amounts,
            steps=0.0 if others["batch"][row] else float(self._table.total_steps[row]),
            walltime_s=float(self.walltime_s[row]),
        )
