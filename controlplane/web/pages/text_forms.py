"""Forms for text that people type on a page, such as YAML."""

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
    """Return a field for text: a line, or with `rows` an area of so many rows."""
    attrs = {"spellcheck": "false", **attrs}
    area = forms.Textarea(attrs={"rows": rows, **attrs})
    line = forms.TextInput(attrs=attrs)
    return forms.CharField(
        label=label,
        help_text=help_text,
        initial=initial,
        required=False,
        max_length=max_length,
        widget=area if rows else line,
    )


class TypedForm(forms.Form):
    """Form whose text is read by another module, which returns problems by field."""

    places: Mapping[str, str] = {}
    """Form fields by the names of data in problems, where these differ."""

    def show(self, problems: Mapping[str, Sequence[str]]) -> None:
        """Show problems at the fields that they name, others at the top."""
        self.full_clean()
        self.errors.clear()
        for name, messages in problems.items():
            field = self.places.get(name, name)
            for message in messages:
                if field in self.fields:
                    self.add_error(field, message)
                else:
                    self.add_error(None, f"{name}: {message}")

    def choose(self, name: str, choices: Iterable[tuple[str, str]]) -> None:
        """Offer these choices, each (value, words), in a field."""
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = list(choices)
