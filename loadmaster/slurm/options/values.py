"""Values of Slurm's options: times, amounts of memory, counts, lists."""

import math
import re
import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass, field

# -- patterns and limits

_TIME = re.compile(r"(?:(\d+)-(?=\d))?(\d+)(?::(\d+))?(?::(\d+))?")
_DAYS_ALONE = re.compile(r"\d+-")
_UNLIMITED = ("unlimited", "infinite", "-1", "0")
"""Texts for no time limit."""

LONGEST_TIME_S = 10 * 365 * 86_400.0
"""Longest time limit in seconds; a longer one means no limit."""

_MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_BYTES = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40}
"""Bytes of each unit of memory."""

_NODES = re.compile(r"\+?(\d{1,9})([km]?)(?:-(\d{1,9})([km]?))?", re.IGNORECASE)
_THOUSANDS = {"": 1, "k": 1024, "m": 1024**2}
"""Factor of each suffix of a number of nodes."""

_COUNT = re.compile(r"\d{1,9}")
_AMOUNT = re.compile(r"(\d{1,9})([KMGTP]?)", re.IGNORECASE)
_IN_G = {"": 1.0, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10, "P": 2.0**20}
"""Factor of each suffix of an amount of a resource, which counts in G."""

_NAME = re.compile(r"[A-Za-z][\w-]*")
_TYPE = re.compile(r"[A-Za-z0-9][\w.+-]*")

AFTER = "after"
_CONDITIONS = (AFTER, "afterok", "afterany", "afternotok", "aftercorr")
_SAME_AS_AFTERANY = "afterburstbuffer"
SINGLETON = "singleton"
"""Condition for all earlier jobs of the user with the same name."""

OR = "?"
"""Separator of dependencies of which one suffices."""

_DELAY = re.compile(r"(.*)\+(\d{1,6})")
"""Job and minutes of after:5+10."""

_JOB = re.compile(r"[0-9a-fA-F][0-9a-fA-F-]*(?:_\d{1,9}|\[\d{1,9}\])?")
_ELEMENTS = re.compile(r"([0-9a-fA-F-]+)_\[(\d{1,9})-(\d{1,9})\]")
MOST_ELEMENTS = 100
"""Elements of an array that one reference may name."""

_SIGNAL = re.compile(
    r"(?P<flags>R?B?|BR):?(?:SIG)?(?P<name>[A-Z]{3,4}\d?|\d{1,2})(?:@(?P<seconds>\d{0,5}))?",
    re.IGNORECASE,
)
_NAMES = "HUP INT QUIT ABRT KILL ALRM TERM USR1 USR2 URG CONT STOP TSTP TTIN TTOU XCPU"
_SIGNALS = {name: int(signals.Signals[f"SIG{name}"]) for name in _NAMES.split()}
GREATEST_SIGNAL = 64
"""Greatest number of a signal on Linux."""

LONGEST_WARNING_S = 65_535
"""Seconds before a job's end at which a signal may come."""

LONGEST_LIST = 1000
"""Characters of a list of GPUs and their types."""

_EXPORTED = re.compile(r"""(?:[^,'"]|'[^']*'|"[^"]*"|['"])+""")
"""Part of a list of variables: quotes may have commas in them."""


class ValueFormatError(ValueError):
    """Wrong value of an option; the message says what to write."""


def time_s(text: str) -> float | None:
    """Return the seconds of a time limit, None for no limit.

    Forms, as of Slurm: minutes, minutes:seconds, hours:minutes:seconds,
    days-[hours[:minutes[:seconds]]].
    """
    if text.lower() in _UNLIMITED:
        return None
    if _DAYS_ALONE.fullmatch(text):
        text += "0"
    match = _TIME.fullmatch(text)
    if not match or len(text) > 30:
        forms = "minutes, hours:minutes:seconds or days-hours:minutes"
        raise ValueFormatError(f"{text!r} is no time; write {forms}, such as 90 or 1-12:00")
    days, *others = match.groups()
    parts = [int(part) for part in others if part is not None]
    # After days the first part is hours; without days it is so only if there are three.
    if days is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours = 0
        minutes, seconds = [*parts, 0][:2]
    limit_s = ((int(days or 0) * 24.0 + hours) * 60 + minutes) * 60 + seconds
    return limit_s if 0 < limit_s <= LONGEST_TIME_S else None


def memory_gb(text: str) -> float:
    """Return the GB (1e9 bytes) of an amount such as 500M or 4G, in MiB without a unit.

    0 stands for all of a node's memory.
    """
    match = _MEMORY.fullmatch(text)
    if not match or len(text) > 20:
        raise ValueFormatError(f"{text!r} is no amount of memory; write one such as 500M or 4G")
    return int(match[1]) * _BYTES[match[2].upper()] / 1e9


def count(text: str) -> int:
    """Return a whole number from 1 on."""
    digits = text.removeprefix("+")
    if not _COUNT.fullmatch(digits) or not int(digits):
        raise ValueFormatError(f"{text!r} is no number; write a whole number from 1 on, such as 4")
    return int(digits)


def nodes(text: str) -> tuple[int, int]:
    """Return the least and greatest number of nodes: 2 and 4 of 2-4, the same twice of 2 or 0."""
    if text == "0":
        return 0, 0
    least = 0
    most = 0
    match = _NODES.fullmatch(text)
    if match:
        least = int(match[1]) * _THOUSANDS[match[2].lower()]
        most = least
        if match[3]:
            most = int(match[3]) * _THOUSANDS[match[4].lower()]
    if not 0 < least <= most:
        raise ValueFormatError(f"{text!r} is no number of nodes; write one such as 2, or 1-4")
    return least, most


def gpus(text: str) -> tuple[int, list[str]]:
    """Return number and types of GPUs of 2, V100:2, 2080ti:1, V100, or several of these."""
    if len(text) > LONGEST_LIST:
        limit = f"has {len(text)} characters and may have {LONGEST_LIST}"
        raise ValueFormatError(f"{limit}; write a number such as 2 or V100:2")
    number = 0
    types = list[str]()
    parts = text.split(",") if text else []
    for part in parts:
        type_, amount = _typed_count(part)
        number += amount
        if type_ and amount:
            types.append(type_)
    return number, types


def _typed_count(text: str) -> tuple[str, int]:
    """Return type and number of GPUs: ("", 2) of 2, any type; ("V100", 1) of V100."""
    if _COUNT.fullmatch(text):
        return "", int(text)
    type_, colon, amount = text.replace("=", ":").partition(":")
    if not colon:
        amount = "1"
    if not _TYPE.fullmatch(type_) or not _COUNT.fullmatch(amount):
        raise ValueFormatError(f"{text!r} is no number of GPUs; write one such as 2 or V100:2")
    return type_, int(amount)


def gres(text: str) -> tuple[int, list[str], dict[str, float]]:
    """Return the number of GPUs, their types, and amounts of other resources by name.

    So of gpu:V100:2,tmpspace:10G. An amount with a unit counts in G (2**30): 10G is 10, 512M is
    0.5.
    """
    number = 0
    types = list[str]()
    others = dict[str, float]()
    if text.lower() == "none":
        return number, types, others
    for part in text.split(","):
        name, _, rest = re.sub(r"^gres[/:]", "", part).partition(":")
        if not _NAME.fullmatch(name) or part.endswith((":", "=")):
            raise ValueFormatError(f"{part!r} is no resource; write one such as gpu:2 or mic:1")
        if name == "gpu":
            type_, amount = _typed_count(rest or "1")
            number += amount
            if type_ and amount:
                types.append(type_)
        else:
            others[name] = others.get(name, 0.0) + _amount(rest, part)
    return number, types, others


def _amount(text: str, part: str) -> float:
    """Return the amount of a resource, 1 if none is given; its type has no meaning here.

    `text` is what follows the resource's name in `part`.
    """
    last = text.replace("=", ":").split(":")[-1]
    match = _AMOUNT.fullmatch(last)
    if match:
        return int(match[1]) * _IN_G[match[2].upper()]
    if not text or _TYPE.fullmatch(text):
        return 1.0
    raise ValueFormatError(f"{part!r} is no resource; write one such as gpu:2 or tmpspace:10G")


def dependencies(text: str) -> list[str]:
    """Return dependencies as a job has them: afterok:1, afterok:2, afterany:3 of afterok:1:2,3.

    Those of which one suffices are one text: [afterok:1?afterany:2]. As of Slurm, a number alone
    waits for the end of its job; 0 or an empty text waits for none.
    """
    if text.strip() in ("", "0"):
        return []
    if OR in text and "," in text:
        remedy = "write commas if all are needed, ? if one suffices"
        raise ValueFormatError(f"{text[:60]!r} has commas and ?; {remedy}")
    separator = OR if OR in text else ","
    conditions = list[str]()
    for part in text.split(separator):
        conditions += _conditions(part.strip())
    if separator == OR:
        return [OR.join(dict.fromkeys(conditions))]
    return conditions


def _conditions(part: str) -> list[str]:
    """Return the conditions of one part, such as after:1 and after:2+10 of after:1:2+10."""
    condition, colon, jobs = part.partition(":")
    condition = condition.strip().lower()
    if condition == SINGLETON and not colon:
        return [SINGLETON]
    if not colon and part.isdecimal():
        condition = "afterany"
        jobs = part
    if condition == _SAME_AS_AFTERANY:
        condition = "afterany"
    if condition not in _CONDITIONS:
        raise _no_dependency(part)
    conditions = list[str]()
    for job in jobs.split(":"):
        job = job.strip()
        delay = ""
        match = _DELAY.fullmatch(job)
        if condition == AFTER and match:
            job = match[1]
            delay = f"+{int(match[2])}"
        for reference in _references(job, part):
            conditions.append(f"{condition}:{reference}{delay}")
    return conditions


def _references(job: str, part: str) -> list[str]:
    """Return the references of 5, 5_3, 5_* (the array) or 5_[1-3] (three elements)."""
    match = _ELEMENTS.fullmatch(job)
    if match:
        indices = range(int(match[2]), int(match[3]) + 1)
        if not 0 < len(indices) <= MOST_ELEMENTS:
            limit = f"name 1 to {MOST_ELEMENTS} elements, or the whole array"
            raise ValueFormatError(f"{job[:60]!r}: {limit}")
        return [f"{match[1]}_{index}" for index in indices]
    job = job.removesuffix("_*")
    if not _JOB.fullmatch(job):
        raise _no_dependency(part)
    return [job]


def _no_dependency(part: str) -> ValueFormatError:
    """Return the error for a part that is no dependency."""
    kinds = f"{', '.join(_CONDITIONS[:-1])} or {_CONDITIONS[-1]} and ids of jobs"
    examples = f"such as afterok:123 or after:123+10, or {SINGLETON}"
    return ValueFormatError(f"{part[:60]!r} is no dependency; write {kinds}, {examples}")


def array_text(text: str) -> str:
    """Return the indices of `--array` as a job has them: 1-9%2 of [1-9]%2.

    Brackets, spaces, empty parts and a limit of 0 are left out.
    """
    indices, _, rest = re.sub(r"[\[\]\s]", "", text).partition("%")

    # Slurm reads the digits after %, and takes parts behind them for more indices.
    digits, comma, more_indices = rest.partition(",")
    indices += comma + more_indices
    match = re.match(r"\d+", digits)
    limit = int(match[0]) if match else 0

    indices = ",".join(part for part in indices.split(",") if part)
    return f"{indices}%{limit}" if limit else indices


def shares(memory_gb: float, units: int) -> float:
    """Return the GB of each of a node's units, rounded up to a byte."""
    return math.ceil(memory_gb / units * 1e9) / 1e9


@dataclass(frozen=True, slots=True)
class EndSignal:
    """Signal `before_s` seconds before a job's end.

    `first`: for the job's first process alone, and not for the steps of its script.
    """

    name: str
    before_s: int = 60
    first: bool = False

    @property
    def number(self) -> int:
        """Number of the signal on this machine."""
        return int(self.name) if self.name.isdecimal() else _SIGNALS[self.name]

    def __str__(self) -> str:
        """Return the signal as `end_signal` reads it."""
        prefix = "B:" if self.first else ""
        return f"{prefix}{self.name}@{self.before_s}"


def end_signal(text: str) -> EndSignal:
    """Read [R][B][:]SIGNAL[@SECONDS], such as USR1@120 or B:10; 60 seconds if none are given.

    R, which lets a job into a reservation in Slurm, has no meaning here.
    """
    match = _SIGNAL.fullmatch(text.strip())
    name = match["name"].upper() if match else ""
    # Known numbers become names; others, such as those of real-time signals, stay numbers.
    names_by_number = {str(number): known for known, number in _SIGNALS.items()}
    name = names_by_number.get(name, name)
    is_other_number = name.isdecimal() and 0 < int(name) <= GREATEST_SIGNAL
    if match is None or (name not in _SIGNALS and not is_other_number):
        form = "write [B:]SIGNAL[@SECONDS], such as USR1@120"
        raise ValueFormatError(f"{text[:40]!r} is no signal; {form}; signals are {_NAMES}")
    before_s = int(match["seconds"] or 60)
    if before_s > LONGEST_WARNING_S:
        raise ValueFormatError(f"{before_s} seconds are more than {LONGEST_WARNING_S}; write fewer")
    return EndSignal(name, before_s, "B" in match["flags"].upper())


@dataclass(frozen=True, slots=True)
class Exported:
    """Request of `--export`: all variables or those of some names, and variables with values."""

    all: bool = False
    names: frozenset[str] = frozenset()
    values: Mapping[str, str] = field(default_factory=dict)


def exported(text: str) -> Exported:
    """Read ALL, NONE, NAME, NAME=value, or several of these with commas between.

    A value with a comma stands in quotes. They stay in the value, as of Slurm.
    """
    takes_all = False
    names = set[str]()
    values = dict[str, str]()
    for part in _EXPORTED.findall(text):
        name, equals, value = part.partition("=")
        if equals:
            values[name] = value
        elif part.upper() == "ALL":
            takes_all = True
        elif part.upper() not in ("NONE", "NIL"):
            names.add(part)
    return Exported(takes_all, frozenset(names), values)
