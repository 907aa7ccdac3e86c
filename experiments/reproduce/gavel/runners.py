"""Runners of cells, by the `runner` that a spec names."""

from collections.abc import Callable, Mapping
from typing import Any

from experiments.reproduce.gavel.allocations import scaling, timeline
from experiments.reproduce.gavel.ideal import ideal
from experiments.reproduce.gavel.model import Spec
from experiments.reproduce.gavel.simulated import cost, simulated

Runner = Callable[[Spec, int], Mapping[str, Any]]
"""(spec, seed) -> figures as plain JSON data; what no two runs share is under `timing`."""

RUNNERS: Mapping[str, Runner] = {
    "simulated": simulated,
    "cost": cost,
    "ideal": ideal,
    "timeline": timeline,
    "scaling": scaling,
}
