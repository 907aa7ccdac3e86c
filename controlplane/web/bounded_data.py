"""JSON and YAML from the network, whose size is checked before any value is built."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from yaml import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    CSafeLoader,
    Event,
    MarkedYAMLError,
    ScalarEvent,
    YAMLError,
    load,
    parse,
)

from controlplane.web import nice_process
from controlplane.web.rest.errors import NoAnswerError
from loadmaster.strict_yaml import TAB_REMEDY, parse_json
from loadmaster.text_formats import without_mark

DEEPEST = 50
"""Most levels of lists and mappings within each other."""

LONGEST_YAML = 1_000_000
"""Most characters of YAML."""

MOST_OF_YAML = 20_000
"""Most values of YAML: texts, numbers, lists and mappings together."""

SHORT_YAML = 10_000
"""Most characters that the web process parses itself, in about 50 ms at worst."""

MOST_OF_JSON = 200_000
"""Most values of a body, whose bytes DATA_UPLOAD_MAX_MEMORY_SIZE limits."""

LONGEST_NUMBER = 100
"""Most digits of a number in YAML: the time to parse a number in base 60 grows with their square.
"""

LONG_NUMBER = re.compile(rf"[-+0-9_:.]{{{LONGEST_NUMBER + 1},}}")
"""Number with more digits."""

FIXED = "no setting raises this limit"
"""Part of messages about a limit."""

JSON_TEXT = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
"""Text in JSON, also one whose closing quote is missing."""

HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")
"""Beginning of a surrogate in JSON: half a character alone, a whole one as a pair."""

NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
"""All bytes but brackets."""


def read_json(body: bytes) -> Any:
    """Parse JSON in UTF-8, whatever charset is declared. Raises ValueError, which says why."""
    # 1. The number of values: each but the first follows a comma or a bracket outside of texts.
    without_texts = JSON_TEXT.sub(b"", body)
    values = without_texts.count(b",") + without_texts.count(b"[") + without_texts.count(b"{")
    if values > MOST_OF_JSON:
        raise ValueError(f"it has more than {MOST_OF_JSON:,} values; {FIXED}, send several bodies")

    # 2. The depth, by the brackets.
    depth = 0
    deepest = 0
    for bracket in without_texts.translate(None, NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > deepest:  # faster than max(), for each body
            deepest = depth
    if deepest > DEEPEST:
        raise ValueError(f"it is nested too deeply: more than {DEEPEST} levels; {FIXED}")

    return json.loads(body.decode(), parse_constant=_no_constant)


def half_characters(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of texts and names with half a character, a lone surrogate.

    No database takes them. A path is such as "jobs[2].name"; `path` is that of `value`.
    """
    if isinstance(value, str) and not _is_encodable(value):
        yield path
    elif isinstance(value, dict):
        for name, inner in value.items():
            inner_path = f"{path}.{name}" if path else name
            if not _is_encodable(name):
                yield inner_path
            yield from half_characters(inner, inner_path)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from half_characters(inner, f"{path}[{index}]")


def _is_encodable(text: str) -> bool:
    """Return True for a text without half characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_yaml(text: str) -> Any:
    """Parse YAML without aliases; long texts are parsed in the nice process.

    Raises ValueError, which names the line.
    """
    if len(text) > LONGEST_YAML:
        raise ValueError(f"has more than {LONGEST_YAML:,} characters; {FIXED}")
    if len(text) <= SHORT_YAML:
        return _parse_yaml(text)
    try:
        return nice_process.ask(_parse_yaml, text)
    except NoAnswerError as error:
        raise ValueError(str(error.detail)) from None


def _parse_yaml(text: str) -> Any:
    """Parse YAML, or JSON that is indented by tabs. Raises ValueError."""
    text = without_mark(text)
    if "\t" in text:
        with suppress(ValueError, RecursionError):  # JSON may be indented by tabs, YAML not
            return _bounded_json(text)
    try:
        _check_events(text)
        return load(text, Loader=CSafeLoader)
    except MarkedYAMLError as error:
        raise ValueError(_problem_in_words(error, text)) from None
    except (YAMLError, UnicodeEncodeError):
        raise ValueError("is no YAML") from None


def _problem_in_words(error: MarkedYAMLError, text: str) -> str:
    """Return an error of libyaml in words, with its line if that is known."""
    problem = error.problem or "is no YAML"
    if "\t" in text and "cannot start any token" in problem:
        problem = TAB_REMEDY
    if not error.problem_mark:
        return problem
    last_line = text.count("\n")  # libyaml's end of the text is a line further
    return f"line {min(error.problem_mark.line, last_line) + 1}: {problem}"


def _bounded_json(text: str) -> Any:
    """Parse JSON within the bounds of YAML. Raises ValueError if it is no object or list."""
    values = text.count(",") + text.count("[") + text.count("{")
    if values > MOST_OF_YAML:
        raise ValueError(f"has more than {MOST_OF_YAML:,} values; {FIXED}")
    read_json(text.encode())  # raises beyond its bounds
    return parse_json(text)


def _check_events(text: str) -> None:
    """Raise ValueError for YAML of which too many or too deep values would be built."""
    depth = 0
    nodes = 0
    for event in parse(text, Loader=CSafeLoader):
        # 1. Aliases: a few of them can stand for more values than any memory holds.
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None):
            raise ValueError(f"{_line(event)}anchors and aliases are not taken here")

        # 2. The depth.
        if isinstance(event, CollectionStartEvent):
            depth += 1
        elif isinstance(event, CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise ValueError(
                f"{_line(event)}is nested too deeply: more than {DEEPEST} levels; {FIXED}"
            )

        # 3. The number of values, and long numbers.
        if isinstance(event, CollectionStartEvent | ScalarEvent):
            nodes += 1
        if nodes > MOST_OF_YAML:
            raise ValueError(f"{_line(event)}has more than {MOST_OF_YAML:,} values; {FIXED}")
        if isinstance(event, ScalarEvent) and _is_long_number(event):
            raise ValueError(
                f"{_line(event)}a number has at most {LONGEST_NUMBER} digits; put text in quotes"
            )


def _is_long_number(scalar: ScalarEvent) -> bool:
    """Return True for a long number without quotes, whose `implicit` libyaml sets."""
    return bool(scalar.implicit[0]) and LONG_NUMBER.fullmatch(scalar.value) is not None


def _line(event: Event) -> str:
    """Return the beginning of a message, with the line of an event; "" if that is unknown."""
    return f"line {event.start_mark.line + 1}: " if event.start_mark else ""


def _no_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python's JSON would take."""
    raise ValueError(f"{name} is no number of JSON")
