"""Operators, who see and act on everything; the history of what they change."""

import json
from collections.abc import Mapping
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model


def is_operator(user: User | AnonymousUser) -> bool:
    """Return True for an operator: Django's staff."""
    return bool(user.is_active and user.is_staff)


def changed(row: Model, values: Mapping[str, Any]) -> list[str]:
    """Return a text such as "seed from 1 to 2" for each field that these values would change."""
    changes = []
    for name, value in values.items():
        old_value = getattr(row, name)
        if old_value != value:
            changes.append(f"{name} from {old_value} to {value}")
    return changes


def note_change(row: Model, by: User, fields: list[str]) -> None:
    """Add to the row's history that `by` changed these fields, as its admin page does."""
    LogEntry.objects.create(
        user=by,
        content_type=ContentType.objects.get_for_model(row),
        object_id=str(row.pk),
        object_repr=str(row)[:200],
        action_flag=CHANGE,
        change_message=json.dumps([{"changed": {"fields": fields}}]),
    )
