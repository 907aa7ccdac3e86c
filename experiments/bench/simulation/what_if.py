"""Wall time of a what-if to the end: `python -m experiments.bench.simulation.what_if`."""

from collections.abc import Iterator
from time import perf_counter

from controlplane.simulation.choices import Choice, compare
from experiments.bench.clusters import a_cluster
from experiments.bench.figures import Figure, figure, show

POLICIES = ("cost_search", "fifo", "edf", "randomized_greedy", "max_min_fairness")
VALUE_OF_TIME = 0.01


def figures(nodes: int = 20, jobs: int = 200) -> Iterator[Figure]:
    """The figure of five policies in two processes, imports and compilation included."""
    snapshot = a_cluster(nodes, jobs)
    began_s = perf_counter()
    found = compare(snapshot, [Choice(name, {}, VALUE_OF_TIME) for name in POLICIES], 2)
    took_s = perf_counter() - began_s
    assert not any(isinstance(ahead, str) or ahead.is_cut for ahead in found), found
    yield figure(f"what-if to the end, N={nodes}, J={jobs}, five policies", took_s, 10.0, "s")


if __name__ == "__main__":
    show(figures())
