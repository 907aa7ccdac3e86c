"""Base of admin pages: access, history with values, read-only pages, readable JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Model, QuerySet
from django.forms import Form
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.web.operators import is_operator
from controlplane.web.pages.admin_audit import AuditedAdmin

F = TypeVar("F", bound=Callable[..., Any])

# Unfold has no type stubs, and Django's classes take type parameters in its stubs only. A type
# checker sees the classes of Django that those of unfold extend.
if TYPE_CHECKING:

    class _ModelAdmin(admin.ModelAdmin[Any]):
        pass

    class _TabularInline(admin.TabularInline[Any, Any]):
        pass

    class PlainModelForm(forms.ModelForm[Any]):
        pass

    def detail_action(*, description: str, url_path: str = "") -> Callable[[F], F]: ...
else:
    from django.forms import ModelForm as PlainModelForm
    from unfold.admin import ModelAdmin as _ModelAdmin
    from unfold.admin import TabularInline as _TabularInline
    from unfold.decorators import action as detail_action

SHOWN_JSON = 60_000
"""Most characters of a JSON field that a page shows."""

__all__ = ["PlainModelForm", "detail_action"]


class StaffOnly:
    """Permission for operators (Django's staff) to do everything that a page offers."""

    def _by_operators(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return is_operator(request.user)

    def _by_nobody(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    has_module_permission = has_view_permission = has_add_permission = _by_operators
    has_change_permission = has_delete_permission = _by_operators


class OperatorAdmin(StaffOnly, AuditedAdmin, _ModelAdmin):
    """Operators' page whose history names old and new values of changed fields.

    Lists stay fast with a million rows. They do not show the number of all rows beside a search.
    They have filters by date instead of Django's hierarchy of dates, which reads every row.
    """

    show_full_result_count = False
    kept_out_of_history: tuple[str, ...] = ()
    """Fields of which the history has only the name, not the values (secrets)."""

    def get_list_select_related(self, request: HttpRequest) -> bool | list[str] | tuple[str, ...]:
        """Return the foreign keys that the list shows; one query reads them with the rows."""
        if self.list_select_related:
            return self.list_select_related
        relations = {field.name for field in self.opts.concrete_fields if field.is_relation}
        return [name for name in self.list_display if name in relations]

    def construct_change_message(
        self, request: HttpRequest, form: Form, formsets: Any, add: bool = False
    ) -> list[dict[str, Any]]:
        """Return the message for the history: names of changed fields with old and new values.

        Django's own message, which has only the names, stays for a new row and for a change of
        inline rows alone.
        """
        message: list[dict[str, Any]] = super().construct_change_message(
            request, form, formsets, add
        )
        if add or not form.changed_data or not message or "changed" not in message[0]:
            return message
        changes = []
        for name in form.changed_data:
            if name in self.kept_out_of_history:
                changes.append(name)
            else:
                old = form.initial.get(name)
                new = form.cleaned_data.get(name)
                changes.append(f"{name} from {old} to {new}")
        message[0]["changed"]["fields"] = changes
        return message


class AppendOnly(OperatorAdmin):
    """Rows that are added and never changed: a later one replaces an earlier one."""

    has_change_permission = has_delete_permission = OperatorAdmin._by_nobody


class ReadOnly(AppendOnly):
    """Rows that people only read."""

    has_add_permission = OperatorAdmin._by_nobody


class OperatorInline(StaffOnly, _TabularInline):
    """Table of rows on another row's page, which operators may change."""

    extra = 0


class ReadOnlyInline(OperatorInline):
    """Table of rows on another row's page, which nobody changes there."""

    can_delete = False
    has_add_permission = has_change_permission = OperatorInline._by_nobody
    has_delete_permission = OperatorInline._by_nobody


def save_changed(obj: Model, changed: Collection[str]) -> None:
    """Save only these fields: rounds and agents write the others. Save a new row whole."""
    is_new = obj._state.adding
    obj.save(update_fields=None if is_new else changed)


def person(request: HttpRequest) -> User | None:
    """Return the user of a request; None for a stranger."""
    return request.user if isinstance(request.user, User) else None


def pretty(field: str, description: str) -> Callable[[Any, Model], SafeString]:
    """Return a method of an admin page that shows a JSON field, indented and with sorted keys."""

    def show(self: object, obj: Model) -> SafeString:
        text = json.dumps(getattr(obj, field), indent=2, sort_keys=True, default=str)
        hidden_characters = len(text) - SHOWN_JSON
        note = ""
        if hidden_characters > 0:
            note = f"\n... and {hidden_characters:,} characters more"
        return format_html(
            '<pre style="max-height:32rem;overflow:auto;white-space:pre-wrap">{}{}</pre>',
            text[:SHOWN_JSON],
            note,
        )

    return admin.display(description=description)(show)


def row_action(
    description: str, act: Callable[[Any, User], object], refusal: type[Exception]
) -> Callable[[admin.ModelAdmin[Any], HttpRequest, QuerySet[Any]], None]:
    """Return an admin action that calls `act(row, user)` for each chosen row.

    Each row has a transaction of its own. An exception of the type `refusal` is shown to the user,
    and the next row is tried.
    """

    @admin.action(description=description)
    def act_on_each(page: admin.ModelAdmin[Any], request: HttpRequest, rows: QuerySet[Any]) -> None:
        successes = 0
        for row in rows:
            try:
                with transaction.atomic():
                    act(row, cast(User, request.user))
                successes += 1
            except refusal as error:
                page.message_user(request, f"{row}: {error}", messages.ERROR)
        if successes:
            page.message_user(request, f"Done for {successes}.", messages.SUCCESS)

    return act_on_each
