"""Times of the Randomized Greedy: `python -m experiments.bench.andreas.randomized_greedy`.

The kernel is held against its goals; the whole policy also builds arrays and names devices.
"""

from collections.abc import Iterator
from functools import partial

from experiments.bench.clusters import a_cluster
from experiments.bench.figures import Figure, figure, milliseconds, show
from policies.andreas.kernels.greedy import search
from policies.andreas.randomized_greedy import RandomizedGreedy
from policies.cost_model.problem import build

GOALS_MS = ((10, 100, 2.0), (100, 1000, 25.0), (1000, 10000, 300.0))
"""(nodes, jobs, milliseconds of 1000 iterations in mode paper)."""
MODES = {"paper": 1.0, "coded": 2.0}
"""Factor of the goals by mode."""


def figures(times: int = 7) -> Iterator[Figure]:
    """The figures, smallest cluster first."""
    for nodes, jobs, goal_ms in GOALS_MS:
        snapshot, size = a_cluster(nodes, jobs), f"N={nodes},J={jobs}"
        for mode, factor in MODES.items():
            policy = RandomizedGreedy(mode=mode, iterations=1000)
            problem = build(snapshot, charged=mode == "paper")
            kernel = partial(search, **policy.search_arguments(problem))
            name = f"randomized_greedy, mode {mode}, {size}"
            yield figure(f"{name}, kernel", milliseconds(kernel, times), goal_ms * factor, "ms")
            yield figure(
                f"{name}, whole", milliseconds(partial(policy, snapshot), times), None, "ms"
            )


if __name__ == "__main__":
    show(figures())
