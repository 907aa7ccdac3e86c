"""Orders of a queue of batch jobs, by wait, predicted run time and cores.

Beside the plain ones: WFP3 and UNICEF (Tang et al. 2009), F1 (Carastan-Santos and de Camargo 2017,
made for logs whose first submission is at 0), and smallest area first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from policies.contract.snapshot import Floats, Ints

HEAD_START_S = 60.0
"""Added to each age in `age_over_area`, so that new jobs of unequal areas differ."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Jobs in a queue, an entry of every array for each.

    `waited_s` float64[J]: time since the arrival; `run_s` float64[J]: predicted run time, at least
    1, inf if unknown; `cores` float64[J]: of all units, at least 1; `arrival_s` float64[J].
    `priority` int64[J]: greater ones come first whatever the order.
    """

    waited_s: Floats
    run_s: Floats
    cores: Floats
    arrival_s: Floats
    priority: Ints

    def sort(self, order: str) -> Sequence[int]:
        """Return the positions of the jobs, the first first: by priority, order, then arrival."""
        # `lexsort` compares its last key first.
        keys = self.arrival_s, ORDERS[order](self), -self.priority
        positions: list[int] = np.lexsort(keys).tolist()
        return positions


Order: TypeAlias = Callable[[Queue], Floats]
"""float64[J]: a number for each job, the least first."""


def _slowdown(queue: Queue) -> Floats:
    """(wait + run time) / run time: the greatest first."""
    return -(1.0 + queue.waited_s / queue.run_s)


def _wfp3(queue: Queue) -> Floats:
    """(wait / run time)^3 times size: the greatest first."""
    return -((queue.waited_s / queue.run_s) ** 3) * queue.cores


def _unicef(queue: Queue) -> Floats:
    """Wait / (log2(size + 1) times run time): the greatest first."""
    return -queue.waited_s / (np.log2(queue.cores + 1.0) * queue.run_s)


def _f1(queue: Queue) -> Floats:
    """log10(run time) times size, plus 870 log10(arrival): the least first."""
    arrival = np.log10(np.maximum(queue.arrival_s, 1.0))
    return np.log10(queue.run_s) * queue.cores + 870.0 * arrival


def _age_over_area(queue: Queue) -> Floats:
    """Age / (run time times root of size): the greatest first."""
    return -(queue.waited_s + HEAD_START_S) / (queue.run_s * np.sqrt(queue.cores))


ORDERS: Mapping[str, Order] = {
    "arrival": lambda queue: np.zeros_like(queue.run_s),
    "shortest": lambda queue: queue.run_s,
    "longest": lambda queue: -queue.run_s,
    "slowdown": _slowdown,
    "smallest_area": lambda queue: queue.run_s * queue.cores,
    "unicef": _unicef,
    "wfp3": _wfp3,
    "f1": _f1,
    "age_over_area": _age_over_area,
}
