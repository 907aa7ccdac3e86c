"""Rows that an action on another row must leave as they are."""

from collections.abc import Collection
from typing import Any

from django.apps import apps
from django.db.models import Model

Rows = dict[type[Model], dict[Any, dict[str, Any]]]
"""Values of rows by model and key."""

OURS = ("accounting", "clusters", "jobs", "knox", "loop", "profiling", "studies", "web", "auth")
"""Labels of the applications whose rows are looked at: not the audit, which only grows."""


def rows(left_out: Collection[str] = ()) -> Rows:
    """Read all rows of the project's models, but for models of these names."""
    found: Rows = {}
    for model in apps.get_models():
        is_ours = model._meta.app_label in OURS and model.__name__ not in left_out
        if is_ours:
            found[model] = _rows_of(model)
    return found


def _rows_of(model: type[Model]) -> dict[Any, dict[str, Any]]:
    names = [field.attname for field in model._meta.concrete_fields]
    values = model._default_manager.order_by("pk").values_list("pk", *names)
    return {row[0]: dict(zip(names, row[1:], strict=True)) for row in values}


def check_unchanged(known: Rows, now: Rows) -> None:
    """Raise AssertionError if one of the known rows has changed or is gone."""
    for model, before in known.items():
        after = {key: now[model].get(key) for key in before}
        assert after == before, model.__name__
