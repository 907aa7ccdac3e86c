"""Readers of job fields: each returns the value of plain data, or raises FieldError."""

import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from difflib import get_close_matches

from loadmaster import shell_words
from loadmaster.slurm.options.constraints import ALTERNATIVE
from loadmaster.slurm.options.reading import NAMED, text_problems
from loadmaster.slurm.options.values import OR, SINGLETON, ValueFormatError, end_signal

ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED_PREFIX = "LOADMASTER_"
"""Beginning of names of variables that only the agent sets."""

_REGISTRY = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
IMAGE = re.compile(
    rf"(?:{_REGISTRY}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?"
    r"(?:@(sha256:[0-9a-f]{64}))?"
)
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
LABELS = re.compile(rf"{LABEL.pattern}(?:{re.escape(ALTERNATIVE)}{LABEL.pattern}){{0,20}}")
"""Label that a job needs, or alternatives such as a100|v100."""

DURATION = re.compile(
    r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?"
)
"""Duration such as 1d2h3m4s, any part of which may be left out."""

UNITS_S = (86_400, 3_600, 60, 1)
"""Seconds of the units of DURATION, in their order."""

JOB_ID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
ELEMENT = r"(?:_\d{1,9}|\[\d{1,9}\])"
_REFERENCE = rf"(?:{JOB_ID.pattern}|\d{{1,19}}){ELEMENT}?"
_DEPENDENCY = (
    rf"(?:{SINGLETON}|"
    rf"(?:(?:afterok|afterany|afternotok|aftercorr):)?{_REFERENCE}|"
    rf"after:{_REFERENCE}(?:\+\d{{1,6}})?)"
)
DEPENDENCY = re.compile(rf"{_DEPENDENCY}(?:{re.escape(OR)}{_DEPENDENCY}){{0,99}}")
"""Dependency, or several of which one suffices."""

GPU_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:\.\.|-)\s*(\d{1,9})\s*")
"""Least and greatest number of GPUs: 1..4 or 1-4."""

RESOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
OWN_RESOURCES = ("cores", "memory_gb", "gpus")
"""Amounts that have fields of their own."""

REORDERING = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"
)
"""Characters that reorder the text around them, so that it misleads readers."""

# Most characters, entries, amounts and seconds.
MAX_COMMAND = 65_536
MAX_VALUE = 32_768
MAX_PATH = 1000
MAX_SHOWN = 60
MAX_VARIABLES = 500
MAX_LIST = 100
MAX_AMOUNT = 1e9
MAX_DURATION_S = 10 * 365 * 86_400.0
MAX_YEARS = 20


class FieldError(ValueError):
    """Wrong value of a field; the message says what would be right."""


# -- texts, numbers and words


def text(value: object, *, most: int, empty: bool = True) -> str:
    """Return a text of at most `most` characters without control characters, stripped."""
    if not isinstance(value, str):
        raise FieldError(f"must be text, not {called(value)}")
    for character in value:
        if unicodedata.category(character) in ("Cc", "Cs") or character in REORDERING:
            raise FieldError("must not hold control characters")
    if len(value) > most:
        raise FieldError(f"must have at most {most} characters, not {len(value)}")
    if not empty and not value.strip():
        raise FieldError("must not be empty")
    return value.strip()


def choice(value: object, known: Iterable[str]) -> str:
    """Return one of the known words."""
    words = list(known)
    if not isinstance(value, str) or value not in words:
        choices = " or ".join(words)
        raise FieldError(f"must be {choices}, not {called(value)}{near(value, words)}")
    return value


def whole(value: object, *, least: int, most: int) -> int:
    """Return a whole number from `least` to `most`."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(f"must be a whole number from {least} to {most}, not {called(value)}")
    if not least <= value <= most:
        raise FieldError(f"must be from {least} to {most}, not {called(value)}")
    return value


def number(value: object, *, least: float, most: float, above: bool = False) -> float:
    """Return a finite number from `least` to `most`; `above` excludes `least` itself."""
    limits = f"from {least:g} to {most:g}"
    if above:
        limits = f"above {least:g} up to {most:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FieldError(f"must be a number {limits}, not {called(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise FieldError(f"must be a finite number {limits}")
    if not least <= value <= most or (above and value == least):
        raise FieldError(f"must be {limits}, not {called(value)}")
    return float(value)


def flag(value: object) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise FieldError(f"must be true or false, not {called(value)}")
    return value


def amounts(value: object) -> dict[str, float]:
    """Return amounts of named resources, such as {"mic": 2}; those of 0 are left out."""
    if not isinstance(value, dict):
        raise FieldError(f'must be an object such as {{"mic": 2}}, not {called(value)}')
    if len(value) > MAX_LIST:
        raise FieldError(f"must have at most {MAX_LIST} entries, not {len(value)}")
    for name in value:
        if not isinstance(name, str) or not RESOURCE.fullmatch(name) or name in OWN_RESOURCES:
            rule = "is no name of a resource: 1 to 63 letters, digits, - or _"
            raise FieldError(f"{called(name)} {rule}; cores, memory_gb and gpus are fields")
    amount_by_name = {}
    for name in sorted(value):
        try:
            amount = number(value[name], least=0, most=MAX_AMOUNT)
        except FieldError as error:
            raise FieldError(f"{name} {error}") from None
        if amount:
            amount_by_name[name] = amount
    return amount_by_name


def words(value: object, *, pattern: re.Pattern[str], what: str) -> tuple[str, ...]:
    """Return a list of words, or a single one, each once; `what` they are is for messages."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise FieldError(f"must be a list of {what}, not {called(value)}")
    if len(items) > MAX_LIST:
        raise FieldError(f"must have at most {MAX_LIST} entries, not {len(items)}")
    for item in items:
        if not isinstance(item, str) or not pattern.fullmatch(item):
            raise FieldError(f"must be a list of {what}; {called(item)} is none")
    return tuple(dict.fromkeys(items))


# -- what runs


def image(value: object) -> str:
    """Return the name of an image, with a tag, a digest, or both."""
    name = text(value, most=300)
    if name and not IMAGE.fullmatch(name):
        remedy = "write one such as registry.example/me/train:1"
        if "@" in name:
            remedy += "; a digest is sha256: and 64 hexadecimal digits"
        raise FieldError(f"{called(name)} is no image name; {remedy}")
    return name


def digest_of(image_name: str) -> str:
    """Return the digest that pins the image; "" if it has only a tag."""
    return image_name.partition("@")[2]


def command(value: object) -> tuple[str, ...]:
    """Return program and arguments: of a list, or of one text, split as a shell would."""
    try:
        parts = shell_words.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise FieldError(f"cannot be split into words ({error}); write a list of strings") from None
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        forms = 'a string or a list of strings, such as ["python", "train.py"]'
        raise FieldError(f"must be {forms}; put numbers in quotes")
    all_parts = "".join(parts)
    if "\0" in all_parts or not _is_encodable(all_parts):
        raise FieldError("must be valid text without NUL characters")
    if len(all_parts) > MAX_COMMAND:
        remedy = "put long scripts into a file"
        raise FieldError(f"must have at most {MAX_COMMAND} characters; {remedy}")
    if parts and not parts[0].strip():
        raise FieldError("must begin with a program")
    return tuple(parts)


def script(value: object) -> str:
    """Return the text of a batch script, with the line of its interpreter."""
    if not isinstance(value, str) or not _is_encodable(value):
        raise FieldError(f"must be the text of a script, not {called(value, hide=True)}")
    problems = list(text_problems(value))
    if problems:
        raise FieldError("; ".join(problems))
    return value


def signal(value: object) -> str:
    """Return the signal before a job's end, such as USR1@120, with the seconds filled in."""
    try:
        return str(end_signal(text(value, most=40)))
    except ValueFormatError as error:
        raise FieldError(str(error)) from None


def folder(value: object) -> str:
    """Return the absolute path of a folder."""
    path = text(value, most=MAX_PATH)
    if not path.startswith("/"):
        raise FieldError(f"must be a path from the root on, such as /home/me, not {called(path)}")
    return path


def environment(value: object) -> dict[str, str | dict[str, str]]:
    """Return variables {"NAME": "value"} or {"NAME": {"secret": "name of a team secret"}}.

    Numbers become text.
    """
    if not isinstance(value, dict):
        raise FieldError(f'must be an object such as {{"NAME": "value"}}, not {called(value)}')
    if len(value) > MAX_VARIABLES:
        raise FieldError(f"must have at most {MAX_VARIABLES} variables, not {len(value)}")
    return {_variable_name(name): _variable(name, content) for name, content in value.items()}


def _variable_name(name: object) -> str:
    """Return the name of a variable that a job may set."""
    if not isinstance(name, str) or len(name) > 200 or not ENVIRONMENT_NAME.fullmatch(name):
        raise FieldError(f"{called(name)} is no variable name; use letters, digits and _")
    if name.upper().startswith(RESERVED_PREFIX):
        reason = f"names that begin with {RESERVED_PREFIX} are reserved for Loadmaster"
        raise FieldError(f"{name}: {reason}; choose another")
    return name


def _variable(name: str, content: object) -> str | dict[str, str]:
    """Return the value of a variable: a text, or a reference to a secret."""
    if isinstance(content, dict):
        if set(content) != {"secret"} or not isinstance(content["secret"], str):
            raise FieldError(f'{name}: a reference must be {{"secret": "name of a team secret"}}')
        return {"secret": content["secret"]}
    if isinstance(content, bool) or not isinstance(content, (str, int, float)):
        kind = called(content, hide=True)
        raise FieldError(f"{name}: must be text (put it in quotes), not {kind}")
    value = str(content)
    if "\0" in value or not _is_encodable(value) or len(value) > MAX_VALUE:
        rule = f"must be valid text of at most {MAX_VALUE} characters without NUL"
        raise FieldError(f"{name}: {rule}")
    return value


def mounts(value: object) -> tuple[str, ...]:
    """Return bind mounts such as source:target or source:target:ro, both absolute paths."""
    if not isinstance(value, (list, tuple)) or len(value) > MAX_LIST:
        wanted = f'a list of at most {MAX_LIST} mounts such as "/data/set:/data:ro"'
        raise FieldError(f"must be {wanted}, not {called(value)}")
    return tuple(_mount(item) for item in value)


def _mount(item: object) -> str:
    """Return one mount of absolute paths without `..`."""
    parts = item.split(":") if isinstance(item, str) else []
    has_form = len(parts) == 2 or (len(parts) == 3 and parts[2] in ("ro", "rw"))
    if not has_form or not all(_is_plain_path(path) for path in parts[:2]):
        forms = '"/source:/target" or "/source:/target:ro" with absolute paths'
        raise FieldError(f"{called(item)}: write {forms}")
    return ":".join(parts)


def _is_plain_path(path: str) -> bool:
    """Return True for an absolute path of printable characters without `..`."""
    return path.startswith("/") and ".." not in path.split("/") and path.isprintable()


# -- GPUs


def gpu_range(value: object, *, most: int) -> tuple[int, int]:
    """Return least and greatest number of GPUs, of a number or a text such as "1..4"."""
    match = GPU_RANGE.fullmatch(value) if isinstance(value, str) else None
    if match:
        least = whole(int(match[1]), least=0, most=most)
        upper = whole(int(match[2]), least=0, most=most)
        if least == 0 and upper > 0:
            raise FieldError(f"must be 0, or a range from 1 on, not {called(value)}")
        return least, upper
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FieldError(f'must be a whole number or a range such as "1..4", not {called(value)}')
    count = whole(value, least=0, most=most)
    return count, count


# -- dependencies and times


@dataclass(frozen=True, slots=True)
class Conditions:
    """Dependencies as they are written: condition, and delay of `after`, by reference.

    A reference is the id or number of a job, an array or an element. `one_suffices`: the job waits
    for one of them, not for all.
    """

    by_reference: Mapping[str, str]
    delays: Mapping[str, timedelta]
    one_suffices: bool = False


def dependencies(value: object) -> Conditions:
    """Return the conditions of a list such as [ID, "afterany:ID", "afterok:ID_3"].

    ID is the id or number of a job or array; ID_3 and ID[3] are its element 3. Without a condition
    it is afterok. One text such as "afterok:ID?afterany:ID" has alternatives. `singleton`, for all
    earlier jobs of the user with the job's name, is its own reference and condition.
    """
    # 1. The texts of the conditions.
    what = "ids of jobs, arrays or elements, such as afterany:ID, after:ID+10 or afterok:ID_3"
    items = words(value, pattern=DEPENDENCY, what=what)
    one_suffices = any(OR in item for item in items)
    if one_suffices:
        if len(items) > 1:
            remedy = "write one text a?b if one suffices, a list if all are needed"
            raise FieldError(f"has {OR} and other entries beside it; {remedy}")
        items = tuple(dict.fromkeys(items[0].split(OR)))

    # 2. Their references, conditions and delays.
    by_reference: dict[str, str] = {}
    delays: dict[str, timedelta] = {}
    for item in items:
        text, _, minutes = item.partition("+")
        condition, _, job = text.rpartition(":")
        condition = condition or "afterok"
        if job == SINGLETON:
            condition = SINGLETON
        reference = job.lower().replace("[", "_").rstrip("]")
        delay = timedelta(minutes=int(minutes or 0))
        known_condition = by_reference.setdefault(reference, condition)
        known_delay = delays.setdefault(reference, delay)
        if (known_condition, known_delay) != (condition, delay):
            raise FieldError(f"job {reference} is named twice, with different conditions")
    if one_suffices and SINGLETON in by_reference:
        raise FieldError(f"has {SINGLETON} beside {OR}; {SINGLETON} goes with commas only")
    return Conditions(by_reference, delays, one_suffices)


def duration_s(value: object) -> float:
    """Return seconds above 0, of a number or a text such as 90s, 15m, 1h30m, 2d."""
    seconds = value
    if isinstance(value, str):
        match = DURATION.fullmatch(value.strip().replace(" ", ""))
        if not match or not any(match.groups()):
            forms = "seconds or a duration such as 90s, 15m, 1h30m or 2d"
            raise FieldError(f"must be {forms}, not {called(value)}")
        seconds = 0.0
        for amount, unit_s in zip(match.groups(), UNITS_S, strict=True):
            seconds += float(amount or 0) * unit_s
    return number(seconds, least=0, most=MAX_DURATION_S, above=True)


def moment(value: object, *, now: datetime, zone: tzinfo) -> datetime:
    """Return the time of ISO 8601 (without offset: in `zone`), or of "+2h" from now."""
    if isinstance(value, str) and value.strip().startswith("+"):
        return now + timedelta(seconds=duration_s(value.strip()[1:]))
    parsed = _parsed(value)
    try:
        aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)
        years = abs((aware - now).total_seconds()) / (365 * 86_400)
    except OverflowError:
        years = math.inf
    if years > MAX_YEARS:
        raise FieldError(f"must be within {MAX_YEARS} years of now, not {called(value)}")
    return aware


def _parsed(value: object) -> datetime:
    """Return the time of a text, a date or a time, without a zone if it gives none."""
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001  # zone: the caller's
    try:
        if isinstance(value, str):
            return datetime.fromisoformat(value.strip())
    except ValueError:
        pass
    forms = "2030-01-31T18:00:00+01:00 or +2h"
    raise FieldError(f"must be a time such as {forms}, not {called(value)}")


def gpu_types(value: object, known: list[str]) -> tuple[str, ...]:
    """Return one or several of the known GPU types, as they are spelt; case does not matter."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise FieldError(f"must be a list of GPU types, not {called(value)}")
    spellings = {name.casefold(): name for name in known}
    types = list[str]()
    for name in names:
        spelling = name if name in known else spellings.get(name.casefold())
        if spelling is None:
            wrong = f"{called(name)} is no GPU type{near(name, known)}"
            raise FieldError(f"{wrong}; known are: {', '.join(known) or 'none yet'}")
        types.append(spelling)
    return tuple(dict.fromkeys(types))


# -- words in messages


def unknown(given: Iterable[object], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield fields that no job has, with their problems; of many only the first."""
    names = [name for name in given if name not in known]
    for name in names[:NAMED]:
        is_plain = isinstance(name, str) and len(name) <= MAX_SHOWN and name.isprintable()
        shown = str(name) if is_plain else called(name)
        yield shown, f"is no field of a job{near(name, known)}"
    if len(names) > NAMED:
        yield "job", f"has {len(names)} unknown fields ({NAMED} are listed); remove them"


def near(value: object, known: Iterable[str]) -> str:
    """Return a hint at the known word that was probably meant, or ""."""
    if not isinstance(value, str):
        return ""
    matches = get_close_matches(value, list(known), n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def called(value: object, *, hide: bool = False) -> str:
    """Return a value as messages show it: short; with `hide` only its type.

    Lists and objects are not shown, as their content may be secret.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    if hide or not isinstance(value, (str, int, float)):
        return type(value).__name__
    if isinstance(value, str) or abs(value) < 1e15:
        shown = repr(value)
    else:
        shown = _large_number(value)
    return shown if len(shown) <= MAX_SHOWN else shown[: MAX_SHOWN - 3] + "..."


def _large_number(value: float) -> str:
    """Return a number with three digits; an integer may be too large for that."""
    try:
        return f"{value:.3g}"
    except OverflowError:
        return "a number beyond all bounds"


def _is_encodable(value: str) -> bool:
    """Return True if the text can be written as UTF-8: it has no half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
