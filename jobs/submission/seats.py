"""Fields that say how the units of a batch job are spread over nodes."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

SEATS = ("units", "units_per_node", "nodes", "processes")
"""Fields of a batch job that say how it is spread over nodes."""


def wrong_seats(
    given: Collection[str], plain: Mapping[str, Any], gpus: int, *, batch: bool
) -> Iterator[tuple[str, str]]:
    """Fields that contradict how a job is spread over nodes, and why."""
    if not batch:
        remedy = "leave it out, as a training job is spread by its GPUs, or give no steps"
        yield from ((name, f"is for batch jobs; {remedy}") for name in SEATS if name in given)
        return
    units, most, nodes = plain["units"], plain["units_per_node"], plain["nodes"]
    if gpus % units:
        told = f"{gpus} GPUs cannot be divided evenly over {units} units"
        yield "gpus", f"{told}; give 0 or a multiple of {units}"
    if nodes > units:
        yield "nodes", f"{nodes} nodes need as many units, not {units}; raise units or lower nodes"
    elif most and nodes and most * nodes < units:
        told = f"{nodes} nodes with at most {most} units each hold {most * nodes} of {units} units"
        yield "units_per_node", f"{told}; raise units_per_node or nodes"
