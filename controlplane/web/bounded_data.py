"""JSON and YAML from the network, bounded before anything is built of them."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
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
"""Lists and mappings within each other."""

LONGEST_YAML, MOST_OF_YAML = 1_000_000, 20_000
"""Characters, and texts, numbers, lists and mappings together."""

SHORT_YAML = 10_000
"""Characters that the web process parses itself, in about 50 ms at worst."""

MOST_OF_JSON = 200_000
"""Values of a body, whose bytes DATA_UPLOAD_MAX_MEMORY_SIZE limits."""

LONGEST_NUMBER = 100
NUMBER = re.compile(rf"[-+0-9_:.]{{{LONGEST_NUMBER + 1},}}")
"""A number in base 60 takes time in the square of its digits."""

FIXED = "no setting raises this limit"
JSON_TEXT = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")
"""Beginning of a surrogate in JSON: of half a character, or of a pair that is a whole one."""
OF_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))


def read_json(body: bytes) -> Any:
    """Parse JSON in UTF-8, whatever charset is declared. ValueError names what is wrong."""
    bare = JSON_TEXT.sub(b"", body)
    if sum(bare.count(sign) for sign in (b",", b"[", b"{")) > MOST_OF_JSON:
        raise ValueError(f"it has more than {MOST_OF_JSON:,} values; {FIXED}, send several bodies")
    brackets = bare.translate(None, OF_NO_BRACKET)
    deepest = max(accumulate(1 if sign in b"[{" else -1 for sign in brackets), default=0)
    if deepest > DEEPEST:
        raise ValueError(f"it is nested too deeply: more than {DEEPEST} levels; {FIXED}")
    return json.loads(body.decode(), parse_constant=_no_constant)


def half_characters(value: Any, path: str = "") -> Iterator[str]:
    """Paths of texts and names with half a character, a lone surrogate, as no database takes."""
    if isinstance(value, str) and not _is_encodable(value):
        yield path
    elif isinstance(value, dict):
        for name, inner in value.items():
            place = f"{path}.{name}" if path else name
            if not _is_encodable(name):
                yield place
            yield from half_characters(inner, place)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from half_characters(inner, f"{path}[{index}]")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_yaml(text: str) -> Any:
    """Parse YAML without aliases by libyaml, long texts in the nice process.

    ValueError names the line of an error.
    """
    if len(text) > LONGEST_YAML:
        raise ValueError(f"has more than {LONGEST_YAML:,} characters; {FIXED}")
    if len(text) <= SHORT_YAML:
        return _parsed(text)
    try:
        return nice_process.ask(_parsed, text)
    except NoAnswerError as error:
        raise ValueError(str(error.detail)) from None


def _parsed(text: str) -> Any:
    text = without_mark(text)
    if "\t" in text:
        with suppress(ValueError, RecursionError):  # JSON may be indented by tabs, YAML not
            return _bounded_json(text)
    try:
        _check_events(text)
        return load(text, Loader=CSafeLoader)
    except MarkedYAMLError as error:
        last = text.count("\n")  # libyaml's end of the text is a line further
        mark = error.problem_mark
        where = f"line {min(mark.line, last) + 1}: " if mark else ""
        problem = error.problem or "is no YAML"
        said = TAB_REMEDY if "\t" in text and "cannot start any token" in problem else problem
        raise ValueError(f"{where}{said}") from None
    except (YAMLError, UnicodeEncodeError):
        raise ValueError("is no YAML") from None


def _bounded_json(text: str) -> Any:
    """Data of JSON with the bounds of YAML. ValueError for what is no object or list of JSON."""
    if sum(text.count(sign) for sign in ",[{") > MOST_OF_YAML:
        raise ValueError(f"has more than {MOST_OF_YAML:,} values; {FIXED}")
    read_json(text.encode())  # its bounds
    return parse_json(text)


def _check_events(text: str) -> None:
    """Raise ValueError for a text of which too much would be built."""
    depth = nodes = 0
    for event in parse(text, Loader=CSafeLoader):
        depth += isinstance(event, CollectionStartEvent)
        depth -= isinstance(event, CollectionEndEvent)
        nodes += isinstance(event, CollectionStartEvent | ScalarEvent)
        # A few aliases mean more than any memory holds, and nobody needs one here.
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None):
            raise ValueError(f"{_line(event)}anchors and aliases are not taken here")
        if depth > DEEPEST:
            raise ValueError(
                f"{_line(event)}is nested too deeply: more than {DEEPEST} levels; {FIXED}"
            )
        if nodes > MOST_OF_YAML:
            raise ValueError(f"{_line(event)}has more than {MOST_OF_YAML:,} values; {FIXED}")
        if isinstance(event, ScalarEvent) and event.implicit[0] and NUMBER.fullmatch(event.value):
            raise ValueError(
                f"{_line(event)}a number has at most {LONGEST_NUMBER} digits; put text in quotes"
            )


def _line(event: Event) -> str:
    return f"line {event.start_mark.line + 1}: " if event.start_mark else ""


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
