"""Whether a plan can be kept: what its form allows and no database does. A policy may be anybody's
code.

Texts with a NUL or half a character, moments beyond the calendar, figures beyond all columns: such
a plan would break the round that applies it, time and again. It is refused before, like one that
breaks a rule, and what runs goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from policies.contract.plan import Plan
from policies.contract.policy import SolverFailedError

LAST_S = 253_402_300_799.0
"""The end of the year 9999."""

LONGEST_S = 1e12
MOST_COST = 1e7
MOST_COPIES = 2**31 - 1
MOST_STEPS = 2**63 - 1
LONGEST_TEXT = 10_000

Figure = tuple[str, float | None, float, float]
"""(where it is, itself, the least and the most that can be kept)."""


def check_figures(plan: Plan) -> None:
    """Raises SolverFailedError naming the first figure of a plan that cannot be kept."""
    for where, value, least, most in _figures(plan):
        if value is not None and not least <= value <= most:
            raise SolverFailedError(
                f"the plan cannot be kept: {where} is {value!r:.40}, must be from {least:g} to"
                f" {most:g}"
            )
    if len(plan.message) > LONGEST_TEXT:
        raise SolverFailedError(
            f"the plan cannot be kept: its message has {len(plan.message)} characters, at most"
            f" {LONGEST_TEXT}"
        )


def check_texts(form: Mapping[str, Any]) -> None:
    """Raises SolverFailedError naming the first text in a plan's form that cannot be kept. It looks
    at each: see `may_be_odd`.
    """
    for name, value in form.items():
        for text in _texts(value):
            if cleaned(text) != text:
                raise SolverFailedError(
                    f"the plan cannot be kept: {name} has characters that are none: {text!r:.80}"
                )


def may_be_odd(spelling: bytes) -> bool:
    """Whether a form spelled in ASCII may have such a text: a glance at all of it, for most have
    none.
    """
    return b"\\u0000" in spelling or b"\\ud" in spelling


def cleaned(text: str, longest: int | None = None) -> str:
    """The text with a question mark for what cannot be kept, at most so long."""
    whole = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "?")
    return whole if longest is None or len(whole) <= longest else f"{whole[:longest]}..."


def _figures(plan: Plan) -> Iterator[Figure]:
    for i, placed in enumerate(plan.placements):
        where = f"placements[{i}]"
        yield f"{where}.until_s", placed.until_s, 0.0, LAST_S
        yield f"{where}.predicted_run_s", placed.predicted_run_s, 0.0, LONGEST_S
        yield f"{where}.predicted_energy_cost", placed.predicted_energy_cost, -MOST_COST, MOST_COST
        yield f"{where}.copy", placed.copy, 0, MOST_COPIES
        yield f"{where}.steps_quota", placed.steps_quota, 1, MOST_STEPS
    for i, waits in enumerate(plan.waiting):
        if waits.earliest_s is not None:
            yield f"waiting[{i}].earliest_s", waits.earliest_s, 0.0, LAST_S


def _texts(value: Any) -> Iterator[str]:
    """All texts of plain data, names too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield name
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
