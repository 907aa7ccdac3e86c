"""`python -m experiments.bench`: every benchmark, one after another, as JSON lines."""

from experiments.bench import (
    batch,
    batch_traces,
    dispatchers,
    exploration,
    first_run,
    forecasts,
    gap,
    policies,
    run_times,
    shares,
    simulator,
    traces,
    trade_offs,
    what_if,
    workloads,
)
from experiments.bench.figures import show

if __name__ == "__main__":
    show(policies.figures())
    shares.main([])
    show(dispatchers.figures())
    show(gap.figures())
    show(workloads.figures())
    show(simulator.figures(million=False))
    show(what_if.figures())
    traces.main([])
    show(batch.figures())
    show(batch_traces.figures())
    first_run.main([])
    forecasts.main([])
    run_times.main([])
    show(exploration.figures())
    trade_offs.main(["--policies", "cost_search", "--nodes", "10", "--seeds", "1"])
