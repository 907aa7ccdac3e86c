"""The service account: shares, and time received since they were made. Plain data in plan memory.

A row is a job class, or a pair of classes; an entry is a row on a column in which it has a share.
Times of a row are those of all its jobs (pairs) together: with a share of 2.5 two or three of its
jobs run there at any time. An entry lags by the time that it should have received and has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from policies.contract.snapshot import Floats
from policies.gavel.allocation.job_classes import JobClasses
from policies.gavel.allocation.problem import Shares

SMALLEST_SHARE = 1e-6
"""Shares below are a solver's zeros."""

MOST_AHEAD = 1.0
MOST_BEHIND = 10.0
"""Rounds that a row may be ahead of its share, or behind it, when shares are made anew.

Time that nobody else wanted, or that it missed for want of a node, is not counted for longer.
"""

VERSION = 2
"""Of the memory's form."""

KEPT = ("problem", "made_s", "seen_s", "round_end_s", "objective", "credit")
"""What a memory has beside the entries."""

Name: TypeAlias = tuple[tuple[str, ...], str]
"""The classes of an entry's row, and its column."""

Credits: TypeAlias = Mapping[str, Mapping[str, float]]
"""By job, and GPU type: the time that others of its class had received when it came in."""


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """n entries: `names`, `rows` and `columns` (their numbers now, of entries still there).

    `share` float64[n], `received_s` float64[n] since `made_s`, `ahead_s` float64[n]: by how much
    the row was ahead of its share then (below 0: behind). `policy`: whose shares these are,
    `problem`: the fingerprint of what was shared. `received_s` counts up to `seen_s`; the slices
    given out end at `round_end_s`.
    """

    policy: str
    problem: str
    made_s: float
    seen_s: float
    round_end_s: float
    objective: float
    names: Sequence[Name]
    entry: Mapping[tuple[int, int], int]
    share: Floats
    received_s: Floats
    ahead_s: Floats
    credit: Credits

    def lag_s(self, now_s: float) -> Floats:
        """float64[n]: time that each entry's row should have received by now and has not."""
        lag: Floats = self.share * (now_s - self.made_s) - self.received_s - self.ahead_s
        return lag

    def after(
        self, now_s: float, running: Iterable[tuple[int, int, float]], credit: Credits
    ) -> ServiceAccount:
        """Return the account now; `running`: (row, column, since when) of everything that runs."""
        received, seen_s = self.received_s.tolist(), self.seen_s
        for row, column, since_s in running:
            if (i := self.entry.get((row, column))) is not None:
                received[i] += max(0.0, now_s - max(since_s, seen_s))
        return replace(self, received_s=np.array(received), seen_s=now_s, credit=credit)

    def until(self, round_end_s: float) -> ServiceAccount:
        """Return the account of a round that ends then."""
        return replace(self, round_end_s=round_end_s)

    def to_memory(self) -> dict[str, Any]:
        """Return the account as plain data."""
        numbers = (a.tolist() for a in (self.share, self.received_s, self.ahead_s))
        entries = zip(self.names, *numbers, strict=True)
        return {
            "version": VERSION,
            "policy": self.policy,
            **{name: getattr(self, name) for name in KEPT},
            "entries": [[list(of), column, *numbers] for (of, column), *numbers in entries],
        }


def from_memory(
    memory: Mapping[str, Any], policy: str, classes: JobClasses
) -> ServiceAccount | None:
    """Return the account that this policy's last plan kept; None if there is none."""
    if (memory.get("policy"), memory.get("version")) != (policy, VERSION):
        return None
    entries = memory["entries"]
    of, columns, *numbers = zip(*entries, strict=True) if entries else [()] * 5
    names = list(zip(map(tuple, of), columns, strict=True))
    share, received_s, ahead_s = (np.array(values, dtype=np.float64) for values in numbers)
    return ServiceAccount(
        policy=policy, names=names, entry=_numbers(names, classes), share=share,
        received_s=received_s, ahead_s=ahead_s, **{name: memory[name] for name in KEPT},
    )  # fmt: skip


def opened(
    policy: str,
    problem: str,
    classes: JobClasses,
    shares: Shares,
    now_s: float,
    round_s: float,
    before: ServiceAccount | None,
) -> ServiceAccount:
    """Return a new account for shares just made; rows of the one before take their lag along.

    Time received counts from now on (Gavel, section 5). If no lag were taken along, then with
    events in every round rows with small shares would never run.
    """
    table = np.concatenate([shares.alone, shares.paired]) if len(shares.paired) else shares.alone
    row, column = np.nonzero(table > SMALLEST_SHARE)
    share, keys, columns = table[row, column], classes.row_keys, classes.column_names
    names = [(keys[r], columns[c]) for r, c in zip(row.tolist(), column.tolist(), strict=True)]
    ahead_s = np.zeros(len(row))
    if before is not None:
        ahead_s = _taken_along(names, share, before, now_s, round_s)
    return ServiceAccount(
        policy=policy, problem=problem, made_s=now_s, seen_s=now_s,
        round_end_s=now_s if before is None else before.round_end_s,
        objective=shares.objective, names=names, entry=_numbers(names, classes), share=share,
        received_s=np.zeros(len(row)), ahead_s=ahead_s,
        credit={} if before is None else before.credit,
    )  # fmt: skip


def _numbers(names: Iterable[Name], classes: JobClasses) -> dict[tuple[int, int], int]:
    """Return the number of the entry of each (row, column) that is still there."""
    row_of = classes.row_of
    column_of = {name: c for c, name in enumerate(classes.column_names)}
    found = {}
    for i, (key, column) in enumerate(names):
        if key in row_of and column in column_of:
            found[row_of[key], column_of[column]] = i
    return found


def _taken_along(
    names: Sequence[Name], share: Floats, before: ServiceAccount, now_s: float, round_s: float
) -> Floats:
    stood = dict(zip(before.names, (-before.lag_s(now_s)).tolist(), strict=True))
    ahead = np.array([stood.get(name, 0.0) for name in names], dtype=np.float64)
    unit = round_s * np.maximum(share, 1.0)
    taken: Floats = np.clip(ahead, -MOST_BEHIND * unit, MOST_AHEAD * unit)
    return taken
