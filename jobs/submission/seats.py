"""Fields that say how the units of a batch job are spread over nodes."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

SEATS = ("units", "units_per_node", "nodes", "processes")
"""Fields of a batch job that say how it is spread over nodes."""


def wrong_seats(
    given: Collection[str], plain: Mapping[str, Any], gpus: int, *, batch: bool
) -> Iterator[tuple[str, str]]:
    """Yield (field, message) for each field that contradicts how a job is spread over nodes.

    `given`: names of the fields that the user gave; `plain`: values of all independent fields.
    """
    if not batch:
        remedy = "leave it out, as a training job is spread by its GPUs, or give no steps"
        for name in SEATS:
            if name in given:
                yield name, f"is for batch jobs; {remedy}"
        return
    units = plain["units"]
    most = plain["units_per_node"]
    nodes = plain["nodes"]
    if gpus % units:
        uneven = f"{gpus} GPUs cannot be divided evenly over {units} units"
        yield "gpus", f"{uneven}; give 0 or a multiple of {units}"
    if nodes > units:
        yield "nodes", f"{nodes} nodes need as many units, not {units}; raise units or lower nodes"
    elif most and nodes and most * nodes < units:
        limit = f"{nodes} nodes with at most {most} units each hold {most * nodes} of {units} units"
        yield "units_per_node", f"{limit}; raise units_per_node or nodes"
