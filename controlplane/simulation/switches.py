"""Failures, noise and delays of a simulation, off by default and stated with results.

Random values are drawn from the run's seed, separately for each purpose, so that turning one switch
on leaves the others' draws unchanged.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field

from profiling.run_times.predictors import Predictor

Seconds = Annotated[float, Field(ge=0, le=1e7)]
JobCount = Annotated[int, Field(ge=0, le=10_000_000)]
Deviation = Annotated[float, Field(ge=0, le=1)]
"""Relative standard deviation of a factor with mean 1."""
AnyPredictor: TypeAlias = Predictor | Literal["oracle"]
"""Predictor of a simulation, which can know the true run times too."""


@dataclass(frozen=True, slots=True)
class Switches:
    """Switches of one simulation. Seconds are virtual.

    Changes: `launch_s` from a launch to its first step, `stop_s` from the request to the devices'
    release, `restart_cost_s` extra time of every launch of a job but its first (each is added to
    the scenario's own), `profiling_s` from a kind's first arrival until its speed is known
    (measured on no node of the cluster), or `first_run_steps` of a launch by which its speed there
    is known: before, speeds are assumed, estimated and explored, as live with `first_run`.

    Failures: `node_failures_per_day` per node (exponential gaps), each for `node_repair_s`;
    `job_failure_probability` that a launch fails at a random point of its work. The job then waits
    with the steps of its last checkpoint: one every `checkpoint_every_s` of work (0: none but at a
    stop).

    Decisions: `decision_s` of a round, plus `decision_per_job_s` for each job in the snapshot,
    after which the plan is applied to the state of then. `decision_times` adds a table measured
    elsewhere: (jobs in the snapshot, seconds), linear in between and constant beyond, so that equal
    studies stay equal.

    Ends: `kill_at_walltime` (1: on) ends launches of batch jobs at their walltime, where the job
    does not say itself whether it is killed.

    Noise: `run_time_noise` of the speed of each launch; `power_noise` of a node's power between two
    changes of its use; `estimate_error` of the throughputs that policies see; `pairs_observed`, the
    fraction of pairs of kinds measured beforehand: policies see the others as estimated until they
    run.

    Predictions: `predictor` of the run times of batch jobs and of jobs without GPUs, as policies
    see them (`profiling.run_times.predictors`).
    """

    launch_s: Seconds = 0.0
    stop_s: Seconds = 0.0
    restart_cost_s: Seconds = 0.0
    profiling_s: Seconds = 0.0
    first_run_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    node_failures_per_day: Annotated[float, Field(ge=0, le=1000)] = 0.0
    node_repair_s: Annotated[float, Field(gt=0, le=1e7)] = 3600.0
    job_failure_probability: Annotated[float, Field(ge=0, le=0.99)] = 0.0
    checkpoint_every_s: Seconds = 600.0
    decision_s: Seconds = 0.0
    decision_per_job_s: Seconds = 0.0
    decision_times: tuple[tuple[JobCount, Seconds], ...] = ()
    kill_at_walltime: Annotated[int, Field(ge=0, le=1)] = 0
    run_time_noise: Deviation = 0.0
    power_noise: Deviation = 0.0
    estimate_error: Deviation = 0.0
    pairs_observed: Annotated[float, Field(ge=0, le=1)] = 1.0
    predictor: AnyPredictor = "walltime"

    @property
    def takes_time(self) -> bool:
        """Return True if a decision takes virtual time."""
        return bool(self.decision_s or self.decision_per_job_s or self.decision_times)

    def decides_in_s(self, jobs: int) -> float:
        """Return the virtual time of a decision about so many jobs."""
        table = sorted(self.decision_times)
        known = zip(*table, strict=True) if table else ((0.0,), (0.0,))
        return self.decision_s + self.decision_per_job_s * jobs + float(np.interp(jobs, *known))

    @property
    def turned_on(self) -> dict[str, Any]:
        """Return the switches that differ from their defaults."""
        usual = asdict(NO_SWITCHES)
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


def in_words(switches: Mapping[str, Any]) -> str:
    """Return switches with their values in words; "" for none."""
    return ", ".join(f"{name} = {_in_words(value)}" for name, value in switches.items())


def _in_words(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, int | float) else f"a table of {len(value)} rows"


NO_SWITCHES = Switches()
"""Switches that are all off."""
