"""Text and YAML that people type on a page."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml
from django import forms

DEEPEST = 50
"""Lists and mappings within each other; reading takes time in the square of their number."""


def read_yaml(text: str) -> Any:
    """Data in YAML without aliases. ValueError names the line of an error."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            # A few aliases mean more than any memory holds, and nobody needs one here.
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise ValueError(f"{_line(event)}anchors and aliases are not taken here")
            if depth > DEEPEST:
                raise ValueError(f"{_line(event)}is nested too deeply")
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{where}{error.problem or 'is no YAML'}") from None
    except yaml.YAMLError:
        raise ValueError("is no YAML") from None


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


def _line(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}: " if event.start_mark else ""
