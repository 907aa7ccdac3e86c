"""The documented JSON form of a plan: written in one way only, read strictly. See
`policies/contract/schemas/plan.schema.json`.
"""

from __future__ import annotations

from typing import Any

from policies.contract import forms
from policies.contract.forms import Form, Rules
from policies.contract.plan import PLAN_VERSION, Plan

RULES = Rules(
    least={
        "Placement.copy": 0,
        "Placement.steps_quota": 1,
        "Placement.predicted_run_s": 0,
        "Waiting.watts": 0,
    },
    above={"RankSeat.share": 0, "RankSeat.cpu_quota": 0},
    most={"RankSeat.share": 1},
    unbounded=frozenset(),
)

FORM = Form(Plan, RULES)

LIKE_NOW = frozenset({1})
"""Older versions whose plans are plans of this one as they stand: version 2 has but one more reason
to wait.
"""


def to_json(plan: Plan) -> dict[str, Any]:
    """The form as plain JSON data. Raises FormError where a number has none (NaN, inf)."""
    form: dict[str, Any] = FORM.write(plan, "")
    return form


def from_json(form: Any) -> Plan:
    """The plan of a form. Raises FormError naming the path, e.g. "placements[0].ranks[0].share:
    must be > 0 and <= 1".
    """
    if isinstance(form, dict) and form.get("version") in LIKE_NOW:
        form = {**form, "version": PLAN_VERSION}
    forms.check_version(form, "plan", PLAN_VERSION)
    plan: Plan = FORM.read(form, "")
    return plan


def canonical_bytes(plan: Plan) -> bytes:
    """The one spelling of a plan."""
    return forms.canonical_bytes(to_json(plan))


def digest(plan: Plan) -> str:
    """sha256 (hex) of the canonical bytes: equal for equal plans."""
    return forms.digest_of(to_json(plan))


def schema() -> dict[str, Any]:
    """The JSON Schema of the form, as checked in."""
    return FORM.schema("Plan: what a scheduling policy decides", PLAN_VERSION)
