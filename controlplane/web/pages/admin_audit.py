"""Audit of the administration: each saved form and each deletion is a row."""

from collections.abc import Iterator, Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest

from controlplane.audit.record import record, record_values

Values = dict[str, Any]


def team_of(row: Model) -> Model | None:
    """Return the team that a row is of: its own field, or itself."""
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
        """Return the message for the page's history. Django asks for it once the form is saved."""
        if not self.audited_by_service:
            old, new = _values_of(form)
            for formset in formsets or ():
                for name, before, after in _of_formset(formset):
                    old[name], new[name] = before, after
            row = form.instance if isinstance(form, ModelForm) else form.user
            action = f"{row._meta.model_name}.{'add' if add else 'change'}"
            record_values(action, row, new, None if add else old, team=team_of(row))
        return super().construct_change_message(request, form, formsets, add)  # type: ignore[misc]  # of ModelAdmin

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        with transaction.atomic():
            record(f"{obj._meta.model_name}.delete", obj, team=team_of(obj))
            super().delete_model(request, obj)  # type: ignore[misc]  # of ModelAdmin

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        with transaction.atomic():
            for row in queryset:
                record(f"{row._meta.model_name}.delete", row, team=team_of(row))
            super().delete_queryset(request, queryset)  # type: ignore[misc]  # of ModelAdmin


def _of_formset(formset: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, old, new) of what rows beside the form's own have changed."""
    for form in formset.forms:
        if not form.has_changed() and form not in formset.deleted_forms:
            continue
        row, noun = form.instance, formset.model._meta.model_name
        is_new = form in formset.extra_forms
        if form in formset.deleted_forms:
            yield f"{noun} {row}", "there", "deleted"
            continue
        old, new = _values_of(form)
        for name in new:
            yield f"{noun} {row}: {name}", None if is_new else old[name], new[name]


def _values_of(form: Any) -> tuple[Values, Values]:
    """Old and new values of the fields that a form has changed."""
    # A form that sets a password names it as changed, but has it under other names.
    new = {name: form.cleaned_data.get(name, "changed") for name in form.changed_data}
    return {name: _initial(form, name) for name in new if name in form.fields}, new


def _initial(form: Any, name: str) -> Any:
    """Return a field's value before, for a reference the row that it named."""
    field: forms.Field = form.fields[name]
    value = form.get_initial_for_field(field, name)
    if isinstance(field, forms.ModelChoiceField) and not isinstance(value, Mapping | list | Model):
        try:
            return field.to_python(value)
        except ValidationError:
            return value
    return value
