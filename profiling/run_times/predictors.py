"""Predictors of the run times of jobs without known speeds. Pure: both worlds use it.

A prediction uses jobs that have ended before, and no job is killed by it:

- `walltime`: the run time that the user gave;
- `last_two`: mean of the user's last two run times (Tsafrir, Etsion, Feitelson, IEEE TPDS 2007);
- `data_driven`: median of the newest run times of the most specific group of LEVELS that has any
  (after Galleguillos et al., MOD 2017, who take user, job name, queue and resources);
- `oracle`: the true run time, which only a simulation knows.

Without such jobs the prediction is the walltime and, without a walltime, unknown. Only the oracle's
predictions may exceed the walltime.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median
from typing import Literal, NamedTuple, TypeAlias

Predictor: TypeAlias = Literal["walltime", "last_two", "data_driven"]
PREDICTORS: tuple[Predictor, ...] = ("walltime", "last_two", "data_driven")
ORACLE: Literal["oracle"] = "oracle"

WALLTIME = "walltime"
LAST_TWO = "last_two"

LEVELS = (
    ("user", "name", "kind", "request"),
    ("user", "name", "kind"),
    ("user", "kind", "request"),
    ("user", "kind"),
    ("kind", "request"),
    ("kind",),
)
"""Groups of `data_driven`, the most specific first, by the fields that their jobs have in common.

A job without a field is in no group of that field.
"""

USER = ("user",)
"""Group of `last_two`."""

MOST_KEPT = 5
"""Newest run times of a group that are kept."""

ASKED = ("cores", "memory_gb", "units", "units_per_node", "nodes", "gpus_min")
"""Fields of a job that are part of its request; its named resources are, too."""

_NUMBER = re.compile(r"\d+")

Key: TypeAlias = tuple[str, ...]
"""Group of jobs: its source, then the values of its fields."""


class Prediction(NamedTuple):
    """Expected run time in seconds (inf: unknown), and its source ("": none)."""

    run_s: float = inf
    source: str = ""


@dataclass(frozen=True, slots=True)
class Features:
    """Facts of a job by which its run time is predicted; "" or inf if unknown.

    `name`: with # for numbers, so that `run-17` and `run-18` are the same. `kind`: its program or,
    in a trace, its queue and sort of application. `request`: its resources, steps and walltime.
    """

    user: str
    name: str
    kind: str
    request: str
    walltime_s: float = inf

    @classmethod
    def of(
        cls,
        *,
        user: str,
        name: str,
        kind: str,
        amounts: Mapping[str, float],
        steps: float,
        walltime_s: float,
    ) -> Features:
        """Return the facts of a job.

        `amounts`: of ASKED and of named resources. `steps`: 0 for a batch job.
        """
        words = []
        for field, amount in sorted({**amounts, "steps": steps}.items()):
            if amount:
                words.append(f"{field}={amount:.10g}")
        words.append(f"{WALLTIME}={walltime_s:.10g}")
        return cls(user, _NUMBER.sub("#", name), kind, " ".join(words), walltime_s)

    def groups(self) -> Iterator[Key]:
        """Yield the job's groups: those of LEVELS in order, then its user's."""
        for fields in (*LEVELS, USER):
            values = tuple([getattr(self, field) for field in fields])
            if all(values):
                yield "+".join(fields), *values


Newest: TypeAlias = Callable[[Key], Sequence[float] | None]
"""Newest run times of a group in seconds, the newest first; None or empty without any."""


def predict(predictor: Predictor, job: Features, newest: Newest) -> Prediction:
    """Return the prediction of a job's run time; `newest` returns the run times of a group."""
    # 1. By jobs that have ended, at most the walltime.
    prediction = None
    if predictor == LAST_TWO:
        prediction = _last_two(job, newest)
    elif predictor == "data_driven":
        prediction = _data_driven(job, newest)
    if prediction is not None:
        return prediction._replace(run_s=min(prediction.run_s, job.walltime_s))

    # 2. Else the walltime.
    if isfinite(job.walltime_s):
        return Prediction(job.walltime_s, WALLTIME)
    return Prediction()


def _last_two(job: Features, newest: Newest) -> Prediction | None:
    """Return the mean of the user's last two run times; None if there are fewer."""
    if not job.user:
        return None
    last_two_s = (newest((*USER, job.user)) or ())[:2]
    if len(last_two_s) < 2:
        return None
    return Prediction(sum(last_two_s) / 2.0, LAST_TWO)


def _data_driven(job: Features, newest: Newest) -> Prediction | None:
    """Return the median run time of the job's most specific group that has any; None without."""
    for group in job.groups():
        source, *_ = group
        if source == "user":
            continue  # the group of `last_two`
        times_s = newest(group)
        if times_s:
            return Prediction(median(times_s), source)
    return None


def with_newest(run_s: float, before: Sequence[float]) -> tuple[float, ...]:
    """Return the newest run times of a group after one more, the newest first."""
    return (run_s, *before)[:MOST_KEPT]


class RunTimes:
    """Newest run times by group, in memory."""

    def __init__(self) -> None:
        self._newest: dict[Key, tuple[float, ...]] = {}

    def add(self, job: Features, run_s: float) -> None:
        """Add the run time of a job that has ended by itself or at its limit."""
        for key in job.groups():
            self._newest[key] = with_newest(run_s, self._newest.get(key, ()))

    def newest(self, key: Key) -> Sequence[float] | None:
        """Return the newest run times of a group; None without any."""
        return self._newest.get(key)


def still_expected(run_s: float, ran_s: float, walltime_s: float) -> float:
    """Return the expected whole run time of a job that has run for `ran_s` already.

    `run_s`: its predicted run time. A job that has outlived it is expected to run for twice, four
    times ... as long, at most for its walltime. Otherwise policies would plan as if it were about
    to end, again and again.
    """
    if ran_s < run_s or run_s >= walltime_s:
        return run_s
    longer_s = max(run_s, 1.0)
    while longer_s <= ran_s:
        longer_s *= 2.0
    return min(longer_s, walltime_s)
