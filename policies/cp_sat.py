"""CP-SAT with one worker and a budget of work: solutions are the same on every machine."""

from ortools.sat.python import cp_model

from policies.contract.plan import PlanStatus
from policies.contract.policy import SolverFailedError

USABLE = {cp_model.OPTIMAL: PlanStatus.OPTIMAL, cp_model.FEASIBLE: PlanStatus.FEASIBLE}


def run_solver(
    model: cp_model.CpModel, budget: float, seed: int, **settings: int | bool
) -> tuple[cp_model.CpSolver, PlanStatus]:
    """Run the solver for at most `budget` of CP-SAT's deterministic time; `settings`: of CP-SAT.

    Raises SolverFailedError if it ends without a solution.
    """
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = budget
    solver.parameters.random_seed = seed % 2**31
    # With this propagator OR-Tools 9.15 calls solutions optimal that are not (about 1 in 500).
    solver.parameters.auto_detect_greater_than_at_least_one_of = False
    for name, value in settings.items():
        setattr(solver.parameters, name, value)
    status = solver.solve(model)
    if status not in USABLE:
        ended = f"CP-SAT ended with {status.name} within a deterministic time of {budget:g}"
        raise SolverFailedError(f"{ended}: raise the budget")
    return solver, USABLE[status]
