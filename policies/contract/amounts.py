"""Amounts of cores, memory and named resources as integers: the one rule of what fits on a node.

In billionths: bytes of memory, as `_gb` is 10**9 bytes. Both sides are rounded down, a capacity
after a rounding error is given back, so that n equal parts of any capacity fit into it together;
sums of integers have no rounding errors.
"""

from collections.abc import Mapping
from math import floor

BILLIONTHS = 1_000_000_000
UNLIMITED = 1 << 60
"""Amount that never runs out, and the most that counts."""
EXACT = 1.0 + 2.0**-50
"""Makes up for the error of a decimal fraction, as 0.29 of a core."""
EXACT_CAPACITY = 1.0 + 2.0**-49
"""More than `EXACT`, and than the errors of dividing a capacity and multiplying both."""


def demanded(amount: float) -> int:
    """Return what a job demands, in billionths."""
    return floor(min(amount * BILLIONTHS * EXACT, UNLIMITED))


def available(amount: float) -> int:
    """Return what a node has, in billionths."""
    return floor(min(amount * BILLIONTHS * EXACT_CAPACITY, UNLIMITED))


def all_demanded(amounts: Mapping[str, float]) -> dict[str, int]:
    """Return these demands in billionths, without those of nothing."""
    return {name: demanded(amount) for name, amount in amounts.items() if amount > 0.0}


def seat_demanded(
    of_unit: Mapping[str, float], units: int, cpu_quota: float | None
) -> dict[str, int]:
    """Return what a seat of so many units demands, in billionths; a quota replaces the cores."""
    amounts = {name: amount * units for name, amount in all_demanded(of_unit).items()}
    return amounts if cpu_quota is None else {**amounts, "cores": demanded(cpu_quota)}
