"""Search of the models for the least sum of slowdowns, within a budget of work."""

from __future__ import annotations

from policies.batch.cp.dispatcher import Decision
from policies.batch.cp.scheduling import SchedulingModel
from policies.cp_sat import run_solver


def minimised(model: SchedulingModel, budget: float, seed: int) -> Decision:
    """Return the best schedule found. Raises SolverFailedError without any."""
    instance = model.instance
    solver, status = run_solver(
        model.cp,
        budget,
        seed,
        linearization_level=0,
        symmetry_level=0,
        cp_model_probing_level=0,
        cp_model_presolve=model.presolves,
    )
    starts = tuple([solver.value(start) for start in model.s])
    nodes = tuple([model.nodes_of(solver, i) for i in range(len(starts))])

    # The model's objective counts from starts at once, in units of 1 / K and rounded.
    objective = instance.slowdowns(starts)
    at_once = instance.slowdowns([0] * len(starts))
    bound = at_once + solver.best_objective_bound / instance.scale / (1.0 + instance.rounding)
    work = solver.response_proto.deterministic_time
    return Decision(starts, nodes, status, objective, min(objective, bound), work)
