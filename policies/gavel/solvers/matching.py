"""AlloX's matching of jobs to machines and positions in queues, for the least completion times.

A job that is the k-th from the end of a machine's queue delays itself and the k - 1 jobs behind it
by its run time there. So on machines that become free at times r_m the sum of all completion times
is the sum over jobs of r_m + k * t[j, m], each job having a position (m, k) of its own: a matching
of least weight (Le et al., AlloX, EuroSys 2020, section 4; Bruno, Coffman and Sethi, 1974).
"""

from dataclasses import dataclass

import numpy as np

from policies.contract.policy import SolverFailedError
from policies.contract.snapshot import Bools, Floats, Ints

SPARE_POSITIONS = 1
"""Positions of a queue that are tried at first beyond the mean number of jobs per GPU."""

TIE = 1e-9
"""Fraction by which the first job seems shorter than the last: it decides between equal ones."""


@dataclass(frozen=True, slots=True)
class Machines:
    """M machines. A machine is several like GPUs that become free at the same time.

    `gpus` int64[M]: their number; `ready_s` float64[M]: seconds until they are free.
    """

    gpus: Ints
    ready_s: Floats


@dataclass(frozen=True, slots=True)
class Matching:
    """Machine of each job, and its position in the queue of one of the GPUs there.

    `machine` int64[J]. `from_end` int64[J]: position counted from the end, 1 the last to run.
    `total_s`: the sum of all completion times, from now.
    """

    machine: Ints
    from_end: Ints
    total_s: float


def match(times_s: Floats, machines: Machines) -> Matching:
    """Return the matching of least total completion time.

    `times_s` float64[J, M]: run times, inf where impossible; each job can run somewhere. Of equal
    jobs the first run first. Raises SolverFailedError if the jobs cannot be matched.

    Queues get more positions as needed: if no GPU of a machine uses its last position, none would
    use further ones, so the optimum is that over all positions.
    """
    jobs = len(times_s)
    machines = Machines(np.minimum(machines.gpus, jobs), machines.ready_s)
    # Of equal jobs the first seems the shortest, and so runs first.
    tie_break = 1.0 + TIE * np.arange(jobs) / max(jobs, 1)
    seeming_s = times_s * tie_break[:, None]

    # Begin with about as many positions as jobs per GPU; more than its jobs none ever needs.
    most = np.count_nonzero(np.isfinite(times_s), axis=0)
    gpus = max(int(machines.gpus.sum()), 1)
    jobs_per_gpu = -(-jobs // gpus)  # rounded up
    depth = np.minimum(most, jobs_per_gpu + SPARE_POSITIONS)
    while True:
        assigned = _assign(seeming_s, machines, depth)
        if assigned is None:
            if (depth == most).all():
                raise SolverFailedError(
                    "AlloX: some job cannot run on any machine, or a run time is no number"
                )
            needs_more = np.ones(len(depth), dtype=np.bool_)
        else:
            machine, from_end = assigned
            needs_more = _uses_last(machine, from_end, depth) & (depth < most)
            if not needs_more.any():
                total_s = _total_s(times_s, machines, machine, from_end)
                return Matching(machine, from_end, total_s)
        depth = np.where(needs_more, np.minimum(2 * depth, most), depth)


def _total_s(times_s: Floats, machines: Machines, machine: Ints, from_end: Ints) -> float:
    """Return the sum of all completion times."""
    own_time_s = times_s[np.arange(len(machine)), machine]
    return float((machines.ready_s[machine] + from_end * own_time_s).sum())


def _assign(times_s: Floats, machines: Machines, depth: Ints) -> tuple[Ints, Ints] | None:
    """Return machine and position from the end of each job, int64[J]; None if there is no room.

    `depth` int64[M]: positions in the queue of each GPU of a machine.
    """
    # 1. All positions of all GPUs, as columns: machine by machine, from the end of the queues.
    positions = machines.gpus * depth
    machine = np.repeat(np.arange(len(depth)), positions)
    begin = np.repeat(np.cumsum(positions) - positions, positions)
    from_end = (np.arange(len(machine)) - begin) // machines.gpus[machine] + 1
    if len(machine) < len(times_s):
        return None

    # 2. A column for each job, at least cost.
    from scipy.optimize import linear_sum_assignment  # 40 MB, which web does without

    cost_s = machines.ready_s[machine] + from_end * times_s[:, machine]
    try:
        job, column = linear_sum_assignment(cost_s)
    except ValueError:  # scipy's word for infeasible; also for NaN, which more columns do not cure
        return None
    column_of_job = np.zeros(len(times_s), dtype=np.int64)
    column_of_job[job] = column
    return machine[column_of_job], from_end[column_of_job]


def _uses_last(machine: Ints, from_end: Ints, depth: Ints) -> Bools:
    """bool[M]: True for machines with a job at the last position of a queue."""
    uses_last = np.zeros(len(depth), dtype=np.bool_)
    uses_last[machine[from_end == depth[machine]]] = True
    return uses_last
