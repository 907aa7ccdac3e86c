"""Forms of text that people type on a page."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django import forms


def text_field(
    label: str,
    help_text: str = "",
    initial: str = "",
    rows: int = 0,
    max_length: int | None = None,
    **attrs: Any,
) -> forms.CharField:
    """A field for text: a line, or an area of so many rows."""
    shown = {"spellcheck": "false", **attrs}
    widget = forms.Textarea(attrs={"rows": rows, **shown}) if rows else forms.TextInput(attrs=shown)
    return forms.CharField(
        label=label,
        help_text=help_text,
        initial=initial,
        required=False,
        max_length=max_length,
        widget=widget,
    )


class TypedForm(forms.Form):
    """A form that is read as typed, and whose messages come from elsewhere, by field."""

    places: Mapping[str, str] = {}
    """Form fields of data that are named otherwise."""

    def show(self, problems: Mapping[str, Sequence[str]]) -> None:
        """Put messages beside the fields that they name, others at the top."""
        self.full_clean()
        self.errors.clear()
        for name, messages in problems.items():
            place = self.places.get(name, name)
            for message in messages:
                if place in self.fields:
                    self.add_error(place, message)
                else:
                    self.add_error(None, f"{name}: {message}")

    def choose(self, name: str, choices: Iterable[tuple[str, str]]) -> None:
        """Offer these choices, (value, words) each."""
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = list(choices)
