"""Window of a long queue (ADR 0014): half by age, a quarter by due date, one cyclic."""

from collections.abc import Sequence

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
    rows = np.array(queue, dtype=np.int64)
    oldest, rest = rows[: most - 2 * quarter], rows[most - 2 * quarter :]
    soonest = np.argpartition(due_s[rest], min(quarter, len(rest) - 1))[:quarter]
    others = np.delete(rest, soonest)
    pieces = -(-len(others) // quarter) if quarter else 1
    start = number % pieces * quarter
    chosen = np.concatenate([oldest, rest[soonest], others[start : start + quarter]])
    return [int(row) for row in np.sort(chosen)]
