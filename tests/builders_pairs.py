"""Tables of pairs that share a GPU: one made of few factors, and a part of Gavel's."""

from collections.abc import Sequence

import numpy as np

from policies.contract.snapshot import KindView, PairThroughput, Source, Throughput
from profiling.pairs.completion import Bools, Floats
from profiling.pairs.fingerprints import Pair

GAVEL_ALONE = {
    "ResNet-18 (batch size 64)": 24.093,
    "ResNet-18 (batch size 128)": 17.995,
    "ResNet-50 (batch size 64)": 4.395,
    "ResNet-50 (batch size 128)": 2.497,
    "Transformer (batch size 64)": 8.618,
    "Transformer (batch size 128)": 5.446,
    "LM (batch size 20)": 64.742,
    "LM (batch size 40)": 45.237,
}
"""steps/s of eight kinds on one V100, to three decimals: Narayanan and others, "Heterogeneity-Aware
Cluster Scheduling Policies for Deep Learning Workloads" (OSDI 2020),
github.com/stanford-futuredata/gavel, simulation_throughputs.json, MIT licence.
"""

GAVEL_BESIDE = (
    (24.093, 20.894, 12.439, 10.245, 18.638, 17.520, 24.093, 24.093),
    (17.615, 14.062, 11.427, 9.115, 17.995, 16.951, 17.995, 17.995),
    (3.553, 3.217, 2.189, 0.000, 2.550, 2.805, 3.021, 3.068),
    (1.975, 1.864, 0.000, 0.000, 0.000, 0.000, 0.000, 0.000),
    (3.709, 4.453, 1.774, 0.000, 6.416, 5.479, 6.504, 5.335),
    (2.979, 3.071, 1.691, 0.000, 4.082, 3.661, 4.304, 3.871),
    (45.645, 37.085, 24.798, 0.000, 52.359, 45.368, 42.269, 35.663),
    (33.106, 29.537, 19.744, 0.000, 35.157, 33.233, 32.774, 28.331),
)
"""From the same table: steps/s of the row's kind beside the column's on one V100; 0 where the two
do not fit.
"""

V100 = "V100"


def gavels_rates() -> dict[Pair, tuple[float, float]]:
    """Every pair of the eight kinds once, as measured."""
    kinds = list(GAVEL_ALONE)
    return {
        (kinds[i], kinds[j], V100): (GAVEL_BESIDE[i][j], GAVEL_BESIDE[j][i])
        for i in range(len(kinds))
        for j in range(i, len(kinds))
    }


def gavels_alone() -> dict[tuple[str, str], float]:
    """Their own speeds by (kind, GPU type)."""
    return {(kind, V100): speed for kind, speed in GAVEL_ALONE.items()}


def gavels_kinds() -> tuple[KindView, ...]:
    """The eight kinds, told as the reader of Gavel's tables tells them: every pair to both."""
    told = gavels_rates() | {(q, k, t): (b, a) for (k, q, t), (a, b) in gavels_rates().items()}
    pairs = {
        kind: tuple(
            PairThroughput(q, t, a, b, Source.MEASURED)
            for (k, q, t), (a, b) in sorted(told.items())
            if k == kind
        )
        for kind in GAVEL_ALONE
    }
    alone = {
        kind: (Throughput(V100, 1, speed, Source.MEASURED),) for kind, speed in GAVEL_ALONE.items()
    }
    return tuple(KindView(kind, kind, alone[kind], pairs[kind]) for kind in sorted(GAVEL_ALONE))


def a_low_rank_matrix(rows: int, columns: int, rank: int, *, seed: int = 0) -> Floats:
    """float64[rows, columns] in [0.1, 0.9]: offsets and a product of so many factors."""
    rng = np.random.default_rng(seed)
    made = (
        rng.uniform(0, 1, (rows, 1))
        + rng.uniform(0, 1, columns)
        + rng.uniform(-1, 1, (rows, rank)) @ rng.uniform(-1, 1, (rank, columns))
    )
    scaled: Floats = 0.1 + 0.8 * (made - made.min()) / (made.max() - made.min())
    return scaled


def a_part_of(matrix: Floats, fraction: float, *, seed: int = 0) -> Bools:
    """bool like the matrix: about this fraction, and something of every row and column."""
    rng = np.random.default_rng(seed)
    observed: Bools = rng.random(matrix.shape) < fraction
    for row in range(len(matrix)):
        observed[row, row % matrix.shape[1]] = True
    for column in range(matrix.shape[1]):
        observed[column % len(matrix), column] = True
    return observed


def sharing_kinds(
    families: int, each: int, types: Sequence[str], *, seed: int = 0
) -> dict[Pair, float]:
    """Retained fractions between all of families * each kinds ("0.0", "0.1", "1.0", ...): those of
    a family share almost alike.
    """
    rng = np.random.default_rng(seed)
    names = [f"{family}.{member}" for family in range(families) for member in range(each)]
    found: dict[Pair, float] = {}
    for gpu_type in types:
        of_family = rng.uniform(0.3, 0.9, (families, families))
        for i, kind in enumerate(names):
            for j, beside in enumerate(names):
                found[kind, beside, gpu_type] = float(
                    of_family[i // each, j // each] + rng.normal(0.0, 0.005)
                )
    return found
