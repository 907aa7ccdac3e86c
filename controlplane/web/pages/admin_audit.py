"""Audit of the administration: each saved form and each deletion is a row of the audit."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest

from controlplane.audit.record import record, record_values

Values = dict[str, Any]
"""Values by field."""


def team_of(row: Model) -> Model | None:
    """Return the team of a row: its field `team`, or the row itself if it is a team."""
    if row._meta.label == "jobs.Team":
        return row
    team = getattr(row, "team", None)
    return team if isinstance(team, Model) else None


class AuditedAdmin:
    """Admin page whose changes are rows of the audit, in the transaction that makes them."""

    audited_by_service = False
    """True if the page saves by a service that writes the row itself."""

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        """Record the form, which is saved now, and return the message for the page's history."""
        if not self.audited_by_service:
            self._record_form(form, formsets or (), is_new=add)
        return super().construct_change_message(request, form, formsets, add)  # type: ignore[misc]  # of ModelAdmin

    def _record_form(self, form: Any, formsets: Iterable[Any], *, is_new: bool) -> None:
        """Add the audit's row of a saved form and its inline forms."""
        old, new = _values_of(form)
        for formset in formsets:
            for name, old_value, new_value in _changes_of_formset(formset):
                old[name] = old_value
                new[name] = new_value
        row = form.instance if isinstance(form, ModelForm) else form.user
        if is_new:
            record_values(f"{row._meta.model_name}.add", row, new, None, team=team_of(row))
        else:
            record_values(f"{row._meta.model_name}.change", row, new, old, team=team_of(row))

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        with transaction.atomic():
            record(f"{obj._meta.model_name}.delete", obj, team=team_of(obj))
            super().delete_model(request, obj)  # type: ignore[misc]  # of ModelAdmin

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        with transaction.atomic():
            for row in queryset:
                record(f"{row._meta.model_name}.delete", row, team=team_of(row))
            super().delete_queryset(request, queryset)  # type: ignore[misc]  # of ModelAdmin


def _changes_of_formset(formset: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, old value, new value) of each change by inline forms."""
    noun = formset.model._meta.model_name
    for form in formset.forms:
        row = form.instance
        if form in formset.deleted_forms:
            yield f"{noun} {row}", "there", "deleted"
        elif form.has_changed():
            is_new = form in formset.extra_forms
            old, new = _values_of(form)
            for name, new_value in new.items():
                old_value = None if is_new else old[name]
                yield f"{noun} {row}: {name}", old_value, new_value


def _values_of(form: Any) -> tuple[Values, Values]:
    """Return old and new values of the fields that a form has changed."""
    # A form that sets a password lists the field as changed, but has the value under another name.
    new = {name: form.cleaned_data.get(name, "changed") for name in form.changed_data}
    old = {name: _initial(form, name) for name in new if name in form.fields}
    return old, new


def _initial(form: Any, name: str) -> Any:
    """Return a field's value before the change; for a reference the row that it named."""
    field: forms.Field = form.fields[name]
    value = form.get_initial_for_field(field, name)
    is_reference = isinstance(field, forms.ModelChoiceField)
    if not is_reference or isinstance(value, Mapping | list | Model):
        return value
    try:
        return field.to_python(value)
    except ValidationError:
        return value
