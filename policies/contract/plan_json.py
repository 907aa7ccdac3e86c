"""JSON form of a plan, read strictly: `policies/contract/schemas/plan.schema.json`."""

from typing import Any

from foundation import forms
from foundation.forms import Form
from policies.contract.plan import PLAN_VERSION, Plan

FORM = Form(Plan, "plan")

OLDER = frozenset({1, 2, 3, 4, 5, 6})
"""Older versions that are read: 2, 5, 6, 7 add reasons, 3 expected starts, 4 units of seats."""


def to_json(plan: Plan) -> dict[str, Any]:
    """Return the JSON form of a plan."""
    return FORM.write(plan)


def from_json(form: Any) -> Plan:
    """Read a plan. FormError names the path, as in "placements[0].ranks[0].share"."""
    if isinstance(form, dict) and form.get("version") in OLDER:
        waiting = [_without_earliest(entry) for entry in form.get("waiting", ())]
        form = {**form, "version": PLAN_VERSION, "waiting": waiting}
    forms.check_version(form, "plan", PLAN_VERSION)
    return FORM.read(form)


def _without_earliest(entry: Any) -> Any:
    """Return the form of an older plan's waiting entry without `earliest_s`.

    That was a bound on the start, and often no expected start.
    """
    if not isinstance(entry, dict):
        return entry
    return {name: value for name, value in entry.items() if name != "earliest_s"}


def canonical_bytes(plan: Plan) -> bytes:
    """Canonical JSON of a plan. FormError where a number has none (NaN, inf)."""
    return FORM.canonical_bytes(plan)


def digest(plan: Plan) -> str:
    """sha256 (hex) of the canonical bytes: equal for equal plans."""
    return forms.digest_of_bytes(canonical_bytes(plan))


def schema() -> dict[str, Any]:
    """JSON Schema of the form, as checked in."""
    return FORM.schema("Plan: what a scheduling policy decides", PLAN_VERSION)
