"""The shortest makespan (Gavel, section 4.2 and appendix A.1), by one program in 1 / M where the
paper bisects on M.

min max_m steps_m / throughput(m, X)   =   1 / max { z : throughput(m, X) >= z * steps_m }
"""

from __future__ import annotations

from math import inf

from policies.contract.snapshot import Floats
from policies.gavel.allocation.problem import AllocationProblem, Shares
from policies.gavel.solvers.levels import inverse, max_min
from policies.gavel.solvers.program import Method


def makespan(
    problem: AllocationProblem, steps: Floats, *, fill: bool = True, method: Method | None = None
) -> Shares:
    """Shares under which all jobs with steps left have ended soonest; the objective is that time in
    seconds.

    `steps` float64[M]: what is left to each job of a class. Jobs that can run nowhere do not count
    (inf where they are all). With `fill`, time that the makespan leaves over goes to whom it brings
    most. Raises SolverFailedError.
    """
    found = max_min(problem, inverse(steps), fill, method)
    return Shares(
        found.alone, found.paired, 1.0 / found.objective if found.objective > 0.0 else inf
    )
