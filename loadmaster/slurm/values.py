"""Values of Slurm's options: times, amounts of memory, counts, lists."""

import math
import re
import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

_TIME = re.compile(r"(?:(\d+)-(?=\d))?(\d+)(?::(\d+))?(?::(\d+))?")
_MEMORY = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_BYTES = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40}
_UNLIMITED = ("unlimited", "infinite", "0")
_NODES = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_GPUS = re.compile(r"(?:([A-Za-z][\w.-]*)[:=])?(\d{1,9})")
_GRES = re.compile(r"([A-Za-z][\w-]*)(?::([A-Za-z][\w.-]*))?(?:[:=](\d{1,9}))?")
_DEPENDENCY = re.compile(r"(afterok|afterany|afternotok|aftercorr)((?::[0-9A-Za-z_\[\]-]+)+)")
_FROM_NOW = re.compile(
    r"now(?:\+(\d{1,9})(seconds?|minutes?|hours?|days?|weeks?)?)?", re.IGNORECASE
)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_HOURS = {"midnight": "00:00", "noon": "12:00", "teatime": "16:00", "elevenses": "11:00"}
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?(am|pm)?", re.IGNORECASE)
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
_SIGNAL = re.compile(r"(B:)?(?:SIG)?([A-Z]+\d?|\d{1,2})(?:@(\d{1,5}))?", re.IGNORECASE)
_EXPORTED = re.compile(r"(?:'[^']*(?:'|$)|[^,'])+")
_NAMES = "HUP INT QUIT ABRT KILL ALRM TERM USR1 USR2 URG CONT STOP TSTP TTIN TTOU"
_SIGNALS = {name: int(signals.Signals[f"SIG{name}"]) for name in _NAMES.split()}
LONGEST_WARNING_S = 65_535
LONGEST_LIST = 1000
"""Characters of GPUs and their types."""


class ValueFormatError(ValueError):
    """Value of an option that is none; the message says what would be right."""


def time_s(text: str) -> float | None:
    """Seconds of a time limit, None without one; a single number is minutes, as of Slurm.

    minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]].
    """
    if text.lower() in _UNLIMITED:
        return None
    match = _TIME.fullmatch(text)
    if not match or len(text) > 30:
        forms = "minutes, hours:minutes:seconds or days-hours:minutes"
        raise ValueFormatError(f"{text!r} is no time; write {forms}, such as 90 or 1-12:00")
    days, *others = match.groups()
    parts = [int(part) for part in others if part is not None]
    if days is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return ((int(days or 0) * 24.0 + hours) * 60 + minutes) * 60 + seconds or None


def memory_gb(text: str) -> float:
    """GB (1e9 bytes) of an amount such as 500M or 4G, in MiB where no unit is said; 0: all."""
    match = _MEMORY.fullmatch(text)
    if not match or len(text) > 20:
        raise ValueFormatError(f"{text!r} is no amount of memory; write one such as 500M or 4G")
    return int(match[1]) * _BYTES[match[2].upper()] / 1e9


def count(text: str) -> int:
    """Whole number from 1 on."""
    if not re.fullmatch(r"\d{1,9}", text) or not int(text):
        raise ValueFormatError(f"{text!r} is no number; write a whole number from 1 on, such as 4")
    return int(text)


def nodes(text: str) -> tuple[int, int]:
    """Least and greatest number of nodes: of 2 both are 2, of 2-4 they differ."""
    match = _NODES.fullmatch(text)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < least <= most:
        raise ValueFormatError(f"{text!r} is no number of nodes; write one such as 2, or 1-4")
    return least, most


def gpus(text: str) -> tuple[int, list[str]]:
    """Number of GPUs, and their types: 2, V100:2, or several of these."""
    if len(text) > LONGEST_LIST:
        said = f"has {len(text)} characters and may have {LONGEST_LIST}"
        raise ValueFormatError(f"{said}; write a number such as 2 or V100:2")
    found = [_GPUS.fullmatch(part) for part in text.split(",")]
    if any(match is None for match in found):
        raise ValueFormatError(f"{text!r} is no number of GPUs; write one such as 2 or V100:2")
    known = [match for match in found if match]
    return sum(int(m[2]) for m in known), [m[1] for m in known if m[1] and int(m[2])]


def gres(text: str) -> tuple[int, list[str], dict[str, int]]:
    """Number of GPUs, their types, and amounts of other resources: gpu:V100:2,mic:1."""
    number, types, others = 0, list[str](), dict[str, int]()
    for part in text.split(",") if text.lower() != "none" else ():
        match = _GRES.fullmatch(part.removeprefix("gres/"))
        if match is None:
            raise ValueFormatError(f"{part!r} is no resource; write one such as gpu:2 or mic:1")
        name, kind, amount = match[1], match[2], int(match[3] or 1)
        if name == "gpu":
            number += amount
            types += [kind] if kind else []
        else:
            others[name] = others.get(name, 0) + amount
    return number, types, others


def dependencies(text: str) -> list[str]:
    """Dependencies as a job has them: of afterok:1:2 the list afterok:1, afterok:2."""
    if "?" in text:
        raise ValueFormatError("? cannot be waited for; separate jobs by commas")
    found = list[str]()
    for part in text.split(","):
        match = _DEPENDENCY.fullmatch(part)
        if match is None:
            kinds = "afterok, afterany, afternotok or aftercorr and ids of jobs"
            raise ValueFormatError(f"{part!r} is no dependency; write {kinds}, such as afterok:123")
        found += [f"{match[1]}:{job}" for job in match[2][1:].split(":")]
    return found


def begin(text: str, now: datetime) -> datetime:
    """Moment in the zone of `now`: now+1hour, 16:00, noon, tomorrow, 2030-01-31T16:00."""
    plain = text.strip().lower()
    if match := _FROM_NOW.fullmatch(plain):
        unit = _SECONDS[(match[2] or "second").rstrip("s")]
        return now + timedelta(seconds=int(match[1] or 0) * unit)
    day, clock = _day_and_clock(plain)
    try:
        return _moment(day, clock, now)
    except (ValueError, OverflowError):
        forms = "now+1hour, 16:00, tomorrow or 2030-01-31T16:00"
        raise ValueFormatError(f"{text!r} is no time; write one such as {forms}") from None


def _day_and_clock(plain: str) -> tuple[str, str]:
    if plain in ("today", "tomorrow") or _DATE.fullmatch(plain):
        return plain, "00:00"
    day, _, clock = plain.partition("t") if _DATE.match(plain) else ("", "", plain)
    return day, _HOURS.get(clock, clock)


def _moment(day: str, clock: str, now: datetime) -> datetime:
    match = _CLOCK.fullmatch(clock)
    if match is None:
        raise ValueError(clock)
    hour = int(match[1]) % 12 + 12 * (match[4].lower() == "pm") if match[4] else int(match[1])
    at = now.replace(hour=hour, minute=int(match[2]), second=int(match[3] or 0), microsecond=0)
    if date := _DATE.fullmatch(day):
        return at.replace(year=int(date[1]), month=int(date[2]), day=int(date[3]))
    if day == "today":
        return now
    return at if not day and at >= now else at + timedelta(days=1)


def labels(text: str) -> list[str]:
    """Labels that a node must all have: of a&b the list a, b."""
    if set(text) & set("|[]*()"):
        said = "needs labels that one node has all of; write them as a&b"
        raise ValueFormatError(f"{text!r}: a job {said}")
    return [label for part in text.split("&") for label in part.split(",") if label]


def shares(memory: float, of: int) -> float:
    """Memory of each unit where a node's amount is for `of` units, not below what it needs."""
    return math.ceil(memory / of * 1e9) / 1e9


@dataclass(frozen=True, slots=True)
class EndSignal:
    """Signal `before_s` seconds before a job's end, for its first process alone or for others."""

    name: str
    before_s: int = 60
    first: bool = False

    @property
    def number(self) -> int:
        """Number of the signal on this machine."""
        return _SIGNALS[self.name]

    def __str__(self) -> str:
        """The signal as `end_signal` reads it."""
        return f"{'B:' * self.first}{self.name}@{self.before_s}"


def end_signal(text: str) -> EndSignal:
    """Signal of [B:]SIGNAL[@SECONDS], such as USR1@120 or B:10; 60 seconds where none are said."""
    match = _SIGNAL.fullmatch(text.strip())
    name, before_s = (match[2].upper(), int(match[3] or 60)) if match else ("", 0)
    numbers = {str(number): name for name, number in _SIGNALS.items()}
    name = numbers.get(name, name)
    if name not in _SIGNALS:
        said = f"write [B:]SIGNAL[@SECONDS], such as USR1@120; signals are {' '.join(_SIGNALS)}"
        raise ValueFormatError(f"{text[:40]!r} is no signal; {said}")
    if before_s > LONGEST_WARNING_S:
        raise ValueFormatError(f"{before_s} seconds are more than {LONGEST_WARNING_S}; write fewer")
    return EndSignal(name, before_s, match is not None and bool(match[1]))


@dataclass(frozen=True, slots=True)
class Exported:
    """Request of `--export`: all variables, some by name, and values of its own."""

    all: bool = False
    names: frozenset[str] = frozenset()
    values: Mapping[str, str] = field(default_factory=dict)


def exported(text: str) -> Exported:
    """Read ALL, NONE, NIL (in any case), NAME, NAME=value, or several with commas between.

    A value in single quotes may have commas: NAME='a,b'.
    """
    is_all = False
    names: set[str] = set()
    own: dict[str, str] = {}
    for part in _EXPORTED.findall(text):
        name, equals, value = part.partition("=")
        if equals:
            own[name] = value.replace("'", "")
        elif name.lower() == "all":
            is_all = True
        elif name.lower() not in ("none", "nil"):
            names.add(name)
    return Exported(is_all, frozenset(names), own)
