"""Utilities of Hadar: the worth of a job as a function of the time at which it ends.

A utility gets durations in seconds from now to the end of each job, and what is known of the jobs
(`JobFacts`), and returns a worth that is at least 0 and never grows with the duration. All of them
are free of the model's units: they know seconds and GPUs, not steps. With d the duration, a the
age of the job, W its GPUs and t the least time it needs (`best_s`, of the whole job `whole_s`):

    effective_throughput   W * whole_s / (d + a)            the paper's, on the model's own scale
    shortest_first         1 / d                            least mean completion time
    critical_path          1 / d + W / d_least * exp(-slack / (margin * horizon)) * t / d

The last one is `shortest_first`, and beside it a job is worth as much per GPU as the shortest one
if no time may be lost on it: its slack is `horizon` - t, the horizon the least time in which all
jobs could end. So a few long jobs start at once on their fastest type, short ones fill the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from policies.contract.policy import PolicyParameterError, SolverFailedError
from policies.contract.snapshot import Floats, Ints

MARGIN = 0.1
"""Fraction of the horizon: with so much slack a job's claim to start at once has shrunk to 1/e."""

SHORTEST_S = 1.0
"""Jobs that need less count as needing so long: no worth is without bound."""

PROBES_S = (1.0, 60.0, 3600.0, 86_400.0, 1e6, 1e9)
"""Durations at which a utility is tried when it is registered."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Facts of n jobs of which a utility may make use, each float64[n].

    `gpus`: the least number of its GPUs; `age_s`: time since arrival; `best_s`: least time for the
    steps left, `whole_s`: for all its steps; `shortest_s`: least `best_s` of all jobs;
    `horizon_s`: least time in which all jobs could end.
    """

    gpus: Floats
    age_s: Floats
    best_s: Floats
    whole_s: Floats
    shortest_s: Floats
    horizon_s: Floats

    def of(self, jobs: Ints) -> "JobFacts":
        """Return the facts of some of the jobs, by their numbers."""
        return JobFacts(
            self.gpus[jobs], self.age_s[jobs], self.best_s[jobs], self.whole_s[jobs],
            self.shortest_s[jobs], self.horizon_s[jobs],
        )  # fmt: skip


Utility: TypeAlias = Callable[[Floats, JobFacts], Floats]
"""Worth of jobs by durations in seconds, float64[n] each."""


def effective_throughput(duration_s: Floats, jobs: JobFacts) -> Floats:
    """Return GPU time of the whole job where it is fastest, per second of its life."""
    worth: Floats = jobs.gpus * jobs.whole_s / (duration_s + jobs.age_s)
    return worth


def shortest_first(duration_s: Floats, jobs: JobFacts) -> Floats:
    """Return ends per second: the shortest remaining time is worth most."""
    worth: Floats = 1.0 / duration_s
    return worth


def critical_path(duration_s: Floats, jobs: JobFacts) -> Floats:
    """Return ends per second, and more for jobs without which the last one would end later."""
    slack_s = np.maximum(jobs.horizon_s - jobs.best_s, 0.0)
    urgency = np.exp(-slack_s / (MARGIN * jobs.horizon_s))
    as_the_shortest = jobs.gpus / jobs.shortest_s
    worth: Floats = (1.0 + as_the_shortest * urgency * jobs.best_s) / duration_s
    return worth


UTILITIES: dict[str, Utility] = {
    "critical_path": critical_path,
    "shortest_first": shortest_first,
    "effective_throughput": effective_throughput,
}
"""Utilities by name; `register_utility` adds to them."""

NAMES: list[str] = list(UTILITIES)
"""Their names: the choices of the policy's parameter."""


def register_utility(name: str, utility: Utility) -> None:
    """Add a utility of one's own. ValueError if it is known, or its worth is not as it must be."""
    if name in UTILITIES:
        raise ValueError(f"{name}: a utility of this name is known; choose another name")
    fault = _fault(utility)
    if fault:
        raise ValueError(f"{name}: {fault}")
    UTILITIES[name] = utility
    NAMES.append(name)


def utility_of(name: str) -> Utility:
    """Return a utility by its name. PolicyParameterError names those that there are."""
    if name not in UTILITIES:
        known = ", ".join(NAMES)
        raise PolicyParameterError(f"utility: must be one of {known}, not {name!r:.80}")
    return UTILITIES[name]


def worth_of(name: str, duration_s: Floats, jobs: JobFacts) -> Floats:
    """Return the worth float64[n] of jobs. SolverFailedError if it is negative or no number."""
    worth = utility_of(name)(np.maximum(duration_s, SHORTEST_S), jobs)
    if worth.shape != duration_s.shape or not np.all(np.isfinite(worth)) or np.any(worth < 0.0):
        raise SolverFailedError(
            f"utility {name}: it must give a finite number, at least 0, for every job"
        )
    return worth


def _fault(utility: Utility) -> str:
    """Return how a utility breaks the rules at the durations that are tried; "" if it does not."""
    duration_s = np.array(PROBES_S)
    day_s = np.full(len(duration_s), 86_400.0)
    ones = np.ones(len(duration_s))
    facts = JobFacts(ones, 0.0 * ones, ones, day_s, ones, day_s)
    worth = np.asarray(utility(duration_s, facts), dtype=np.float64)
    if worth.shape != duration_s.shape:
        return "a utility returns one number for each duration"
    if not np.all(np.isfinite(worth)) or np.any(worth < 0.0):
        return "a utility returns finite numbers, at least 0"
    if np.any(np.diff(worth) > 0.0):
        return "a utility must not grow with the duration"
    return ""
