"""`python -m experiments.bench [--whole]`: every benchmark, one after another, as JSON lines.

`--whole`: a million and 100,000 jobs instead of a part of them, and more decisions by constraint
programming (hours).
"""

import sys

from experiments.bench.agent import isolation
from experiments.bench.andreas import gap, randomized_greedy, trade_offs
from experiments.bench.batch import by_size, dispatchers, easy, run_times
from experiments.bench.figures import show
from experiments.bench.gavel import shares, traces
from experiments.bench.hadar import decisions, optimum
from experiments.bench.hadar import traces as philly
from experiments.bench.profiling import exploration, first_run
from experiments.bench.simulation import forecasts, simulator, what_if, workloads

if __name__ == "__main__":
    whole = "--whole" in sys.argv
    show(randomized_greedy.figures())
    shares.main([])
    show(dispatchers.figures(dispatchers.EVERY if whole else dispatchers.SELDOM))
    show(gap.figures())
    show(workloads.figures())
    show(simulator.figures(million=whole))
    show(what_if.figures())
    traces.main([])
    decisions.main([])
    show(optimum.figures())
    philly.main([])
    show(easy.figures(whole=whole))
    show(by_size.figures())
    first_run.main([])
    forecasts.main([])
    run_times.main([])
    show(exploration.figures())
    show(isolation.figures())
    trade_offs.main(["--policies", "cost_search", "--nodes", "10", "--seeds", "1"])
