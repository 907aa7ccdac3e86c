"""Speed of a job under quotas of cores: what it gets over what it wants.

A job that may use half of the cores that it asked for is taken to be half as fast: the cores that
it asks for are what it uses in parallel. The slowest seat of a gang sets the pace of all. One rule
for policies, predictions and the simulated world (ADR 0054).
"""

from collections.abc import Iterable

from policies.contract.snapshot import RankPlacement


def part_of_speed(ranks: Iterable[RankPlacement], cores: float) -> float:
    """Return the fraction of its speed that a job keeps on these seats.

    `cores`: of a unit of the job; 0: it asked for none, and a quota tells nothing of its speed.
    """
    part = 1.0
    for seat in ranks:
        wanted = cores * seat.units
        if seat.cpu_quota is not None and wanted > 0.0:
            part = min(part, seat.cpu_quota / wanted)
    return part
