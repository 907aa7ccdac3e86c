"""YAML that people type or paste on a page."""

from __future__ import annotations

from typing import Any

import yaml

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


def _line(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}: " if event.start_mark else ""
