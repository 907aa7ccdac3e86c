"""Prices of GPUs that a policy leaves in its plan's memory, for people who read the round.

A policy that decides by prices writes them under `KEY`, in its own unit; `gpu_prices_in` reads them
from a stored plan, whatever the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from foundation.forms import AtLeast0, Count0, Count1

KEY = "gpu_prices"


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """Price of the next GPU of each of these nodes (ids), which are alike.

    A node has `gpus` GPUs of the type, of which `free` are free after the round; the price of a
    full node is one that nobody pays.
    """

    gpu_type: str
    gpus: Count1
    free: Count0
    price: AtLeast0
    nodes: Annotated[tuple[str, ...], Field(min_length=1)]


_PRICES = TypeAdapter(tuple[GpuPrice, ...])


def gpu_prices_form(prices: Iterable[GpuPrice]) -> list[dict[str, Any]]:
    """Return the plain data of prices, for a plan's memory."""
    form: list[dict[str, Any]] = _PRICES.dump_python(tuple(prices), mode="json")
    return form


def gpu_prices_in(memory: object) -> tuple[GpuPrice, ...]:
    """Return the prices in a plan's memory; () if it has none that can be read."""
    if not isinstance(memory, Mapping):
        return ()
    try:
        return _PRICES.validate_python(memory.get(KEY, ()))
    except ValidationError:
        return ()
