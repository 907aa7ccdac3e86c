"""AlloX's matching of jobs to machines and places in queues, for the least completion times.

A job that is the k-th from the end of a machine's queue delays itself and the k - 1 jobs behind it
by its run time there. So on machines that become free at times r_m the sum of all completion times
is the sum over jobs of r_m + k * t[j, m], each job having a place (m, k) of its own: a matching of
least weight (Le et al., AlloX, EuroSys 2020, section 4; Bruno, Coffman and Sethi, 1974).
"""

from dataclasses import dataclass

import numpy as np

from policies.contract.policy import SolverFailedError
from policies.contract.snapshot import Bools, Floats, Ints

SPARE_PLACES = 1
TIE = 1e-9
"""Fraction by which the first job seems shorter than the last: it decides between equal ones."""


@dataclass(frozen=True, slots=True)
class Machines:
    """Groups of like GPUs: `gpus` int64[M] in each, free `ready_s` float64[M] seconds from now."""

    gpus: Ints
    ready_s: Floats


@dataclass(frozen=True, slots=True)
class Matching:
    """int64[J] each: a job's group and its place in the queue of a GPU there, 1 the last to run.

    `total_s`: the sum of all completion times, from now.
    """

    machine: Ints
    place: Ints
    total_s: float


def match(times_s: Floats, machines: Machines) -> Matching:
    """Matching of least total completion time.

    `times_s` float64[J, M]: run times, inf where impossible; each job runs somewhere. Of equal jobs
    the first run first. Places are added as needed: where none of a group's last places is used,
    further ones would not be either, so the optimum is that over all. SolverFailedError where the
    jobs cannot be matched.
    """
    jobs = len(times_s)
    machines = Machines(np.minimum(machines.gpus, jobs), machines.ready_s)
    seeming_s = times_s * (1.0 + TIE * np.arange(jobs) / max(jobs, 1))[:, None]
    most = np.count_nonzero(np.isfinite(times_s), axis=0)
    depth = np.minimum(most, -(-jobs // max(int(machines.gpus.sum()), 1)) + SPARE_PLACES)
    while True:
        found = _assigned(seeming_s, machines, depth)
        full = _fills_last(found, depth, len(machines.gpus)) & (depth < most)
        if found is not None and not full.any():
            return Matching(*found, _total_s(times_s, machines, *found))
        if found is None and (depth == most).all():
            raise SolverFailedError(
                "AlloX: some job cannot run on any machine, or a run time is no number"
            )
        depth = np.where(full, np.minimum(2 * depth, most), depth)


def _total_s(times_s: Floats, machines: Machines, machine: Ints, place: Ints) -> float:
    return float(
        (machines.ready_s[machine] + place * times_s[np.arange(len(place)), machine]).sum()
    )


def _assigned(times_s: Floats, machines: Machines, depth: Ints) -> tuple[Ints, Ints] | None:
    """(group, place) of each job with places up to `depth` int64[M]; None if they are too few."""
    columns = machines.gpus * depth
    machine = np.repeat(np.arange(len(depth)), columns)
    before = np.repeat(np.cumsum(columns) - columns, columns)
    place = (np.arange(len(machine)) - before) // machines.gpus[machine] + 1
    if len(machine) < len(times_s):
        return None
    from scipy.optimize import linear_sum_assignment  # 40 MB, which web does without

    cost = machines.ready_s[machine] + place * times_s[:, machine]
    try:
        job, column = linear_sum_assignment(cost)
    except ValueError:  # scipy's word for infeasible; also for NaN, which more places do not cure
        return None
    of = np.zeros(len(times_s), dtype=np.int64)
    of[job] = column
    return machine[of], place[of]


def _fills_last(found: tuple[Ints, Ints] | None, depth: Ints, groups: int) -> Bools:
    """bool[M]: groups of which a last place is used; all of them where there was no matching."""
    full = np.full(groups, found is None)
    if found is not None:
        machine, place = found
        full[machine[place == depth[machine]]] = True
    return full
