"""Window of a long queue (ADR 0014): half by age, a quarter by due date, one cyclic."""

from collections.abc import Sequence
from math import ceil

import numpy as np

from policies.contract.snapshot import Floats


def queue_window(queue: Sequence[int], most: int, number: int, due_s: Floats) -> Sequence[int]:
    """Return up to `most` rows of the `queue` (rising) for round `number`, rising.

    `due_s` float64: due date of every row of the workload. The last quarter moves on with every
    round, so that each job is considered now and then.
    """
    if len(queue) <= most:
        return queue
    quarter = most // 4
    half = most - 2 * quarter
    rows = np.array(queue, dtype=np.int64)

    # 1. The oldest half, and of the rest the quarter that is due soonest.
    oldest = rows[:half]
    rest = rows[half:]
    soonest = np.argpartition(due_s[rest], min(quarter, len(rest) - 1))[:quarter]

    # 2. Of the others another quarter in each round.
    others = np.delete(rest, soonest)
    start = 0
    if quarter:
        pieces = ceil(len(others) / quarter)
        start = number % pieces * quarter
    chosen = np.concatenate([oldest, rest[soonest], others[start : start + quarter]])
    return [int(row) for row in np.sort(chosen)]
