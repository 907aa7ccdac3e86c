"""Readers of job fields: plain data in, a value or a FieldError with a remedy out."""

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
RANGE = re.compile(r"\s*(\d{1,9})\s*(?:\.\.|-)\s*(\d{1,9})\s*")
RESERVED = "LOADMASTER_"

MAX_COMMAND = 65_536
MAX_VALUE = 32_768
MAX_VARIABLES = 500
MAX_AMOUNT = 1e9
RESOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
OWN_RESOURCES = ("cores", "memory_gb", "gpus")
MAX_LIST = 100
DIRECTIONS = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"
)
"""Characters that reorder the text around them, so that it misleads readers."""

MAX_PATH = 1000

MAX_DURATION_S = 10 * 365 * 86_400.0


class FieldError(ValueError):
    """Bad value of a field; the message says what would be right."""


def text(value: object, *, most: int, empty: bool = True) -> str:
    """A string of at most `most` characters without control characters."""
    if not isinstance(value, str):
        raise FieldError(f"must be text, not {called(value)}")
    if any(unicodedata.category(c) in ("Cc", "Cs") or c in DIRECTIONS for c in value):
        raise FieldError("must not hold control characters")
    if len(value) > most:
        raise FieldError(f"must have at most {most} characters, not {len(value)}")
    if not empty and not value.strip():
        raise FieldError("must not be empty")
    return value.strip()


def choice(value: object, known: Iterable[str]) -> str:
    words = list(known)
    if not isinstance(value, str) or value not in words:
        raise FieldError(f"must be {' or '.join(words)}, not {called(value)}{near(value, words)}")
    return value


def whole(value: object, *, least: int, most: int) -> int:
    """Whole number in the inclusive range."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(f"must be a whole number from {least} to {most}, not {called(value)}")
    if not least <= value <= most:
        raise FieldError(f"must be from {least} to {most}, not {called(value)}")
    return value


def number(value: object, *, least: float, most: float, above: bool = False) -> float:
    """Finite number in the inclusive range; `above` excludes its lower end."""
    wanted = f"{'above' if above else 'from'} {least:g} {'up ' if above else ''}to {most:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FieldError(f"must be a number {wanted}, not {called(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise FieldError(f"must be a finite number {wanted}")
    if not least <= value <= most or (above and value == least):
        raise FieldError(f"must be {wanted}, not {called(value)}")
    return float(value)


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise FieldError(f"must be true or false, not {called(value)}")
    return value


def amounts(value: object) -> dict[str, float]:
    """Amounts of named resources, such as {"mic": 2}; those of 0 are left out."""
    if not isinstance(value, dict):
        raise FieldError(f'must be an object such as {{"mic": 2}}, not {called(value)}')
    if len(value) > MAX_LIST:
        raise FieldError(f"must have at most {MAX_LIST} entries, not {len(value)}")
    for name in value:
        if not isinstance(name, str) or not RESOURCE.fullmatch(name) or name in OWN_RESOURCES:
            rule = "is no name of a resource: 1 to 63 letters, digits, - or _"
            raise FieldError(f"{called(name)} {rule}; cores, memory_gb and gpus are fields")
    found = {name: _amount(name, of) for name, of in value.items()}
    return {name: amount for name, amount in sorted(found.items()) if amount}


def _amount(name: str, value: object) -> float:
    try:
        return number(value, least=0, most=MAX_AMOUNT)
    except FieldError as error:
        raise FieldError(f"{name} {error}") from None


def words(value: object, *, pattern: re.Pattern[str], what: str) -> tuple[str, ...]:
    """List of different words, or a single one."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise FieldError(f"must be a list of {what}, not {called(value)}")
    if len(items) > MAX_LIST:
        raise FieldError(f"must have at most {MAX_LIST} entries, not {len(items)}")
    for item in items:
        if not isinstance(item, str) or not pattern.fullmatch(item):
            raise FieldError(f"must be a list of {what}; {called(item)} is none")
    return tuple(dict.fromkeys(items))


def image(value: object) -> str:
    """Name of an image, with a tag, a digest, or both."""
    name = text(value, most=300)
    if name and not IMAGE.fullmatch(name):
        hint = "; a digest is sha256: and 64 hexadecimal digits" if "@" in name else ""
        raise FieldError(
            f"{called(name)} is no image name; write one such as registry.example/me/train:1{hint}"
        )
    return name


def digest_of(image_name: str) -> str:
    """Digest that pins the image; "" if it has only a tag."""
    return image_name.partition("@")[2]


def command(value: object) -> tuple[str, ...]:
    """Program and arguments: a list, or one string split like a shell would."""
    try:
        parts = shell_words.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise FieldError(f"cannot be split into words ({error}); write a list of strings") from None
    if not isinstance(parts, (list, tuple)) or not all(isinstance(p, str) for p in parts):
        raise FieldError(
            'must be a string or a list of strings, such as ["python", "train.py"]; put numbers in'
            " quotes"
        )
    if any("\0" in p for p in parts) or not _encodable("".join(parts)):
        raise FieldError("must be valid text without NUL characters")
    if sum(len(p) for p in parts) > MAX_COMMAND:
        raise FieldError(
            f"must have at most {MAX_COMMAND} characters; put long scripts into a file"
        )
    if parts and not parts[0].strip():
        raise FieldError("must begin with a program")
    return tuple(parts)


def script(value: object) -> str:
    """Text of a batch script, with the line of its interpreter."""
    if not isinstance(value, str) or not _encodable(value):
        raise FieldError(f"must be the text of a script, not {called(value, hide=True)}")
    if problems := list(text_problems(value)):
        raise FieldError("; ".join(problems))
    return value


def signal(value: object) -> str:
    """Signal before a job's end, such as USR1@120, with the seconds filled in."""
    try:
        return str(end_signal(text(value, most=40)))
    except ValueFormatError as error:
        raise FieldError(str(error)) from None


def folder(value: object) -> str:
    """Absolute path of a folder."""
    path = text(value, most=MAX_PATH)
    if not path.startswith("/"):
        raise FieldError(f"must be a path from the root on, such as /home/me, not {called(path)}")
    return path


def environment(value: object) -> dict[str, str | dict[str, str]]:
    """{"NAME": "value"} or {"NAME": {"secret": "name of a team secret"}}; numbers become text."""
    if not isinstance(value, dict):
        raise FieldError(f'must be an object such as {{"NAME": "value"}}, not {called(value)}')
    if len(value) > MAX_VARIABLES:
        raise FieldError(f"must have at most {MAX_VARIABLES} variables, not {len(value)}")
    return {_variable_name(name): _variable(name, content) for name, content in value.items()}


def _variable_name(name: object) -> str:
    if not isinstance(name, str) or len(name) > 200 or not ENVIRONMENT_NAME.fullmatch(name):
        raise FieldError(f"{called(name)} is no variable name; use letters, digits and _")
    if name.upper().startswith(RESERVED):
        raise FieldError(
            f"{name}: names that begin with {RESERVED} are reserved for Loadmaster; choose another"
        )
    return name


def _variable(name: str, content: object) -> str | dict[str, str]:
    if isinstance(content, dict):
        if set(content) != {"secret"} or not isinstance(content["secret"], str):
            raise FieldError(f'{name}: a reference must be {{"secret": "name of a team secret"}}')
        return {"secret": content["secret"]}
    if isinstance(content, bool) or not isinstance(content, (str, int, float)):
        raise FieldError(
            f"{name}: must be text (put it in quotes), not {called(content, hide=True)}"
        )
    value = str(content)
    if "\0" in value or not _encodable(value) or len(value) > MAX_VALUE:
        raise FieldError(
            f"{name}: must be valid text of at most {MAX_VALUE} characters without NUL"
        )
    return value


def mounts(value: object) -> tuple[str, ...]:
    """Bind mounts written source:target or source:target:ro, both absolute paths."""
    if not isinstance(value, (list, tuple)) or len(value) > MAX_LIST:
        raise FieldError(
            f'must be a list of at most {MAX_LIST} mounts such as "/data/set:/data:ro", not'
            f" {called(value)}"
        )
    return tuple(_mount(item) for item in value)


def _mount(item: object) -> str:
    parts = item.split(":") if isinstance(item, str) else []
    sound = len(parts) == 2 or (len(parts) == 3 and parts[2] in ("ro", "rw"))
    if not sound or not all(
        p.startswith("/") and ".." not in p.split("/") and p.isprintable() for p in parts[:2]
    ):
        raise FieldError(
            f'{called(item)}: write "/source:/target" or "/source:/target:ro" with absolute paths'
        )
    return ":".join(parts)


def gpu_range(value: object, *, most: int) -> tuple[int, int]:
    """Number of GPUs, or "least..most"."""
    match = RANGE.fullmatch(value) if isinstance(value, str) else None
    if match:
        least, upper = (whole(int(match[i]), least=0, most=most) for i in (1, 2))
        if least == 0 < upper:
            raise FieldError(f"must be 0, or a range from 1 on, not {called(value)}")
        return least, upper
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FieldError(f'must be a whole number or a range such as "1..4", not {called(value)}')
    count = whole(value, least=0, most=most)
    return count, count


@dataclass(frozen=True, slots=True)
class Conditions:
    """Condition by reference of a job or array, and delays of `after` by reference.

    `one_suffices`: the job waits for one of them, not for all.
    """

    by_reference: Mapping[str, str]
    delays: Mapping[str, timedelta]
    one_suffices: bool = False


def dependencies(value: object) -> Conditions:
    """Conditions by id or number of a job or array, or ID_3 for an element; afterok unless said.

    Read from a list such as [ID, "afterany:ID", "afterok:ID_3"], where ID[3] is ID_3, or from one
    text of alternatives, "afterok:ID?afterany:ID". `singleton`, for all earlier jobs of the user
    with the job's name, has itself as its condition.
    """
    by_reference: dict[str, str] = {}
    delays: dict[str, timedelta] = {}
    what = "ids of jobs, arrays or elements, such as afterany:ID, after:ID+10 or afterok:ID_3"
    items = words(value, pattern=DEPENDENCY, what=what)
    one_suffices = any(OR in item for item in items)
    if one_suffices:
        if len(items) > 1:
            remedy = "write one text a?b if one suffices, a list if all are needed"
            raise FieldError(f"has {OR} and other entries beside it; {remedy}")
        items = tuple(dict.fromkeys(items[0].split(OR)))
    for item in items:
        text, _, minutes = item.partition("+")
        condition, _, job = text.rpartition(":")
        condition = condition or "afterok"
        if job == SINGLETON:
            condition = SINGLETON
        job = job.lower().replace("[", "_").rstrip("]")
        delay = timedelta(minutes=int(minutes or 0))
        known = (by_reference.setdefault(job, condition), delays.setdefault(job, delay))
        if known != (condition, delay):
            raise FieldError(f"job {job} is named twice, with different conditions")
    if one_suffices and SINGLETON in by_reference:
        raise FieldError(f"has {SINGLETON} beside {OR}; {SINGLETON} goes with commas only")
    return Conditions(by_reference, delays, one_suffices)


def duration_s(value: object) -> float:
    """Seconds, or text such as 90s, 15m, 1h30m, 2d."""
    if isinstance(value, str):
        match = DURATION.fullmatch(value.strip().replace(" ", ""))
        if not match or not any(match.groups()):
            raise FieldError(
                f"must be seconds or a duration such as 90s, 15m, 1h30m or 2d, not {called(value)}"
            )
        value = sum(
            float(n or 0) * unit
            for n, unit in zip(match.groups(), (86_400, 3_600, 60, 1), strict=True)
        )
    return number(value, least=0, most=MAX_DURATION_S, above=True)


def moment(value: object, *, now: datetime, zone: tzinfo) -> datetime:
    """Time: ISO 8601 (without offset: in `zone`), or "+2h" from now."""
    if isinstance(value, str) and value.strip().startswith("+"):
        return now + timedelta(seconds=duration_s(value.strip()[1:]))
    parsed = _parsed(value)
    try:
        aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)
        years = abs((aware - now).total_seconds()) / (365 * 86_400)
    except OverflowError:
        years = math.inf
    if years > 20:
        raise FieldError(f"must be within 20 years of now, not {called(value)}")
    return aware


def _parsed(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001  # zone: the caller's
    try:
        if isinstance(value, str):
            return datetime.fromisoformat(value.strip())
    except ValueError:
        pass
    raise FieldError(
        f"must be a time such as 2030-01-31T18:00:00+01:00 or +2h, not {called(value)}"
    )


def gpu_types(value: object, known: list[str]) -> tuple[str, ...]:
    """One or several of the known GPU types, in their spelling; their case does not matter."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)) or not all(isinstance(t, str) for t in given):
        raise FieldError(f"must be a list of GPU types, not {called(value)}")
    spellings = {name.casefold(): name for name in known}
    found = list[str]()
    for name in given:
        spelling = name if name in known else spellings.get(name.casefold())
        if spelling is None:
            wrong = f"{called(name)} is no GPU type{near(name, known)}"
            raise FieldError(f"{wrong}; known are: {', '.join(known) or 'none yet'}")
        found.append(spelling)
    return tuple(dict.fromkeys(found))


def unknown(given: Iterable[object], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Fields that no job has, with their problems; of many the first are named."""
    names = [name for name in given if name not in known]
    for name in names[:NAMED]:
        plain = isinstance(name, str) and len(name) <= 60 and name.isprintable()
        yield str(name) if plain else called(name), f"is no field of a job{near(name, known)}"
    if len(names) > NAMED:
        yield "job", f"has {len(names)} unknown fields ({NAMED} are listed); remove them"


def near(value: object, known: Iterable[str]) -> str:
    """Hint at the known word that was probably meant, or ""."""
    found = get_close_matches(value, list(known), n=1) if isinstance(value, str) else []
    return f"; did you mean {found[0]}?" if found else ""


def called(value: object, *, hide: bool = False) -> str:
    """Value as messages show it: short, and without content that may be secret."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    if hide or not isinstance(value, (str, int, float)):
        return type(value).__name__
    shown = repr(value) if isinstance(value, str) or abs(value) < 1e15 else f"{_huge(value)}"
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _huge(value: float) -> str:
    try:
        return f"{value:.3g}"
    except OverflowError:
        return "a number beyond all bounds"


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
