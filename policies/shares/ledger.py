"""What is kept between rounds: the shares, and what each row has received since they were made. Plain data in the plan's memory.

A *row* is a class, or after all classes a pair of them; an *entry* is a row on a column in which it has a share. Times of a row are
those of all its jobs (pairs) together: with a share of 2.5 two or three of its jobs run there at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from policies.job_columns import frozen
from policies.shares.classing import Classed
from policies.shares.division import Shares
from policies.snapshot import Floats, Ints

SMALLEST_SHARE = 1e-6
"""Shares below are a solver's zeros."""

MOST_AHEAD = 1.0
MOST_BEHIND = 10.0
"""Rounds that a row may be ahead of its share, or behind it, when shares are made anew: what it had because nobody else wanted it,
or could not have for want of a node, is not held against anybody for longer."""

VERSION = 1
"""Of what is kept."""

NOBODY = -1

Levels: TypeAlias = Mapping[str, Mapping[str, float]]
"""By job, and GPU type: what its class mates had received when it came in after them. Plain data, never written to."""


@dataclass(frozen=True)
class Ledger:
    """n entries: `names` (key of the row, column), `row` int64[n] and `column` int64[n] their numbers now (NOBODY: not there any
    more), `share` float64[n] X, `received_s` float64[n] since `made_s`, `ahead_s` float64[n] by how much the row was ahead of its
    share then (below 0: behind).

    `policy` whose shares these are, `division` the fingerprint of what was divided; `seen_s`: up to when `received_s` counts;
    `round_end_s`: when the turns given out end.
    """

    policy: str
    division: str
    made_s: float
    seen_s: float
    round_end_s: float
    objective: float
    names: tuple[tuple[str, str], ...]
    row: Ints
    column: Ints
    share: Floats
    received_s: Floats
    ahead_s: Floats
    level: Levels

    @cached_property
    def entry(self) -> Mapping[tuple[int, int], int]:
        """Number of the entry of each (row, column)."""
        keys = enumerate(zip(self.row.tolist(), self.column.tolist(), strict=True))
        return {key: i for i, key in keys if key[0] != NOBODY and key[1] != NOBODY}

    def owed_s(self, now_s: float) -> Floats:
        """float64[n]: time that each entry's row should have received by now and has not."""
        owed: Floats = self.share * (now_s - self.made_s) - self.received_s - self.ahead_s
        return owed

    def after(self, now_s: float, running: Iterable[tuple[int, int, float]]) -> Ledger:
        """The ledger now; `running` are (row, column, since when) of everything that runs."""
        received, entries, seen_s = self.received_s.tolist(), self.entry, self.seen_s
        for row, column, since_s in running:
            entry = entries.get((row, column))
            if entry is not None:
                received[entry] += max(0.0, now_s - (since_s if since_s > seen_s else seen_s))
        return self.going_on(received_s=frozen(np.array(received, dtype=np.float64)), seen_s=now_s)

    def going_on(self, **changed: Any) -> Ledger:
        """The ledger of the same entries with other times."""
        after = replace(self, **changed)
        if "entry" in vars(self):
            vars(after)["entry"] = self.entry
        return after

    def to_memory(self) -> dict[str, Any]:
        """The ledger as plain data."""
        numbers = (a.tolist() for a in (self.share, self.received_s, self.ahead_s))
        return {
            "version": VERSION,
            "policy": self.policy,
            "division": self.division,
            "made_s": self.made_s,
            "seen_s": self.seen_s,
            "round_end_s": self.round_end_s,
            "objective": self.objective,
            "entries": [[*name, *of] for name, *of in zip(self.names, *numbers, strict=True)],
            "level": dict(self.level),
        }


def from_memory(memory: Mapping[str, Any], policy: str, classes: Classed) -> Ledger | None:
    """The ledger that this policy's plan kept, with the numbers that its rows have now; None where there is none."""
    if (memory.get("policy"), memory.get("version")) != (policy, VERSION):
        return None
    keys, columns, *numbers = zip(*memory["entries"], strict=True) if memory["entries"] else [()] * 5
    row_of, column_of = classes.row_of, classes.column_of
    share, received_s, ahead_s = (frozen(np.array(values, dtype=np.float64)) for values in numbers)
    return Ledger(
        policy=policy, division=memory["division"], made_s=memory["made_s"], seen_s=memory["seen_s"],
        round_end_s=memory["round_end_s"], objective=memory["objective"], names=tuple(zip(keys, columns, strict=True)),
        row=frozen(np.array([row_of.get(key, NOBODY) for key in keys], dtype=np.int64)),
        column=frozen(np.array([column_of.get(name, NOBODY) for name in columns], dtype=np.int64)),
        share=share, received_s=received_s, ahead_s=ahead_s, level=memory["level"],
    )  # fmt: skip


def opened(policy: str, classes: Classed, shares: Shares, now_s: float, round_s: float, before: Ledger | None) -> Ledger:
    """A new ledger for shares just made; rows that had one before take along how they stood.

    Time received counts from now on (Gavel, section 5). Were nothing taken along, then with events in every round whoever has a
    small share would always be the one who is owed least, and never run.
    """
    table = np.concatenate([shares.alone, shares.paired])
    row, column = (of.astype(np.int64) for of in np.nonzero(table > SMALLEST_SHARE))
    share, nothing, columns = table[row, column], frozen(np.zeros(len(row))), tuple(classes.column_of)
    names = tuple((classes.row_key(r), columns[c]) for r, c in zip(row.tolist(), column.tolist(), strict=True))
    made = Ledger(
        policy=policy, division=classes.fingerprint, made_s=now_s, seen_s=now_s, round_end_s=now_s, objective=shares.objective,
        names=names, row=frozen(row), column=frozen(column), share=frozen(share), received_s=nothing, ahead_s=nothing, level={},
    )  # fmt: skip
    if before is None:
        return made
    ahead_s = _taken_along(made, before, now_s, round_s)
    return replace(made, round_end_s=before.round_end_s, level=before.level, ahead_s=ahead_s)


def _taken_along(made: Ledger, before: Ledger, now_s: float, round_s: float) -> Floats:
    stood = dict(zip(before.names, (-before.owed_s(now_s)).tolist(), strict=True))
    ahead = np.array([stood.get(name, 0.0) for name in made.names], dtype=np.float64)
    unit = round_s * np.maximum(made.share, 1.0)
    return frozen(np.clip(ahead, -MOST_BEHIND * unit, MOST_AHEAD * unit))
