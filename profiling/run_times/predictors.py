"""Predictors of the run times of jobs without known speeds. Pure: both worlds use it.

A prediction is made from what has ended before, on-line, and kills nothing:

- `walltime`: the run time that the user gave;
- `last_two`: mean of the user's last two run times (Tsafrir, Etsion, Feitelson, IEEE TPDS 2007);
- `data_driven`: median of the newest run times of the most specific group of LEVELS that has any
  (after Galleguillos et al., MOD 2017, who take user, job name, queue and resources);
- `oracle`: the true run time, which only a simulation knows.

One with nothing to go by falls back to the walltime, without one to unknown. None exceeds the
walltime but the oracle's.
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
"""Groups of `data_driven`, the most specific first. A job without a field is in none with it."""

USER = ("user",)
"""Group of `last_two`."""

MOST_KEPT = 5
"""Newest run times of a group that are kept."""

ASKED = ("cores", "memory_gb", "units", "units_per_node", "nodes", "gpus_min")
"""Fields of a job that are part of its request, beside its named resources."""

_NUMBER = re.compile(r"\d+")

Key: TypeAlias = tuple[str, ...]
"""Group of jobs: its source, then the values of its fields."""


class Prediction(NamedTuple):
    """Expected run time in seconds (inf: unknown), and its source ("": none)."""

    run_s: float = inf
    source: str = ""


@dataclass(frozen=True, slots=True)
class Features:
    """Facts of a job by which its run time is predicted; "" or inf where there are none.

    `kind`: its program, or of a trace its queue and sort of application. `request`: what it asks
    for, the walltime included. Numbers in a name do not count: `run-17` and `run-18` are one.
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
        """Return the facts; `amounts`: of ASKED and named resources; `steps`: 0 of a batch job."""
        given = {**amounts, "steps": steps}
        asked = [*sorted((n, a) for n, a in given.items() if a), (WALLTIME, walltime_s)]
        request = " ".join(f"{n}={a:.10g}" for n, a in asked)
        return cls(user, _NUMBER.sub("#", name), kind, request, walltime_s)

    def groups(self) -> Iterator[Key]:
        """Yield the job's groups: those of LEVELS in order, then its user's."""
        for fields in (*LEVELS, USER):
            values = tuple([getattr(self, field) for field in fields])
            if all(values):
                yield "+".join(fields), *values


Newest: TypeAlias = Callable[[Key], Sequence[float] | None]
"""Newest run times of a group in seconds, the newest first; None or empty without any."""


def predict(predictor: Predictor, job: Features, newest: Newest) -> Prediction:
    """Return the run time that a predictor expects of a job, and from where it has it."""
    found = None
    if predictor == LAST_TWO:
        found = _last_two(job, newest)
    elif predictor == "data_driven":
        found = _data_driven(job, newest)
    if found is not None:
        return found._replace(run_s=min(found.run_s, job.walltime_s))
    return Prediction(job.walltime_s, WALLTIME) if isfinite(job.walltime_s) else Prediction()


def _last_two(job: Features, newest: Newest) -> Prediction | None:
    two_s = (newest(("user", job.user)) or ())[:2] if job.user else ()
    return Prediction(sum(two_s) / 2.0, LAST_TWO) if len(two_s) == 2 else None


def _data_driven(job: Features, newest: Newest) -> Prediction | None:
    groups = (key for key in job.groups() if key[0] != "user")
    found = ((key[0], newest(key)) for key in groups)
    return next((Prediction(median(times), source) for source, times in found if times), None)


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
        return self._newest.get(key)


def still_expected(run_s: float, ran_s: float, walltime_s: float) -> float:
    """Return the whole run time expected of a job that has run for `ran_s` already.

    One that has outlived its prediction is expected to run for twice, four times ... as long, at
    most to its walltime: by a plan with no time left it would be about to end for ever.
    """
    if ran_s < run_s or run_s >= walltime_s:
        return run_s
    longer_s = max(run_s, 1.0)
    while longer_s <= ran_s:
        longer_s *= 2.0
    return min(longer_s, walltime_s)
