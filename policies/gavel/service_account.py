"""What is kept between rounds: the shares, and what each row has received since they were made.
Plain data in the plan's memory.

A *row* is a class, or after all classes a pair of them; an *entry* is a row on a column in which it
has a share. Times of a row are those of all its jobs (pairs) together: with a share of 2.5 two or
three of its jobs run there at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from policies.contract.job_columns import frozen
from policies.contract.snapshot import Floats, Ints
from policies.gavel.allocation.job_classes import JobClasses
from policies.gavel.allocation.problem import Shares

SMALLEST_SHARE = 1e-6
"""Shares below are a solver's zeros."""

MOST_AHEAD = 1.0
MOST_BEHIND = 10.0
"""Rounds that a row may be ahead of its share, or behind it, when shares are made anew: what it had
because nobody else wanted it, or could not have for want of a node, is not held against anybody for
longer.
"""

VERSION = 2
"""Of what is kept."""

TOLD = ("problem", "made_s", "seen_s", "round_end_s", "objective", "level")
"""What a memory has beside the entries."""

NUMBERS = ("names", "share", "received_s", "ahead_s")
"""What it has in the entries, in their order."""

CHANGES = {*TOLD, "received_s"}
"""What of a account changes while its entries stay."""

NOBODY = -1

Levels: TypeAlias = Mapping[str, Mapping[str, float]]
"""By job, and GPU type: what its class mates had received when it came in after them. Plain data,
never written to.
"""


@dataclass(frozen=True)
class ServiceAccount:
    """n entries: `names` (key of the row, column), `row` int64[n] and `column` int64[n] their
    numbers now (NOBODY: not there any more), `share` float64[n] X, `received_s` float64[n] since
    `made_s`, `ahead_s` float64[n] by how much the row was ahead of its share then (below 0:
    behind).

    `policy` whose shares these are, `problem` the fingerprint of what was divided; `seen_s`: up to
    when `received_s` counts; `round_end_s`: when the turns given out end.
    """

    policy: str
    problem: str
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

    @property
    def numbers(self) -> dict[str, Any]:
        """The fields NUMBERS."""
        return {name: getattr(self, name) for name in NUMBERS}

    def lag_s(self, now_s: float) -> Floats:
        """float64[n]: time that each entry's row should have received by now and has not."""
        lag: Floats = self.share * (now_s - self.made_s) - self.received_s - self.ahead_s
        return lag

    def after(
        self, now_s: float, running: Iterable[tuple[int, int, float]], level: Levels
    ) -> ServiceAccount:
        """The account now; `running` are (row, column, since when) of everything that runs, `level`
        who stands level with whom.
        """
        received, entries, seen_s = self.received_s.tolist(), self.entry, self.seen_s
        for row, column, since_s in running:
            entry = entries.get((row, column))
            if entry is not None:
                received[entry] += max(0.0, now_s - (since_s if since_s > seen_s else seen_s))
        return self.going_on(
            received_s=frozen(np.array(received, dtype=np.float64)), seen_s=now_s, level=level
        )

    def going_on(self, **changed: Any) -> ServiceAccount:
        """The account of the same entries with other times.

        TypeError for what is no field, or one that says which entries there are.
        """
        if wrong := changed.keys() - CHANGES:
            raise TypeError(f"a account that goes on keeps its {', '.join(sorted(wrong))}")
        after = object.__new__(ServiceAccount)
        vars(after).update(vars(self), **changed)
        return after

    def to_memory(self) -> dict[str, Any]:
        """The account as plain data."""
        numbers = (a.tolist() for a in (self.share, self.received_s, self.ahead_s))
        return {
            "version": VERSION,
            "policy": self.policy,
            "problem": self.problem,
            "made_s": self.made_s,
            "seen_s": self.seen_s,
            "round_end_s": self.round_end_s,
            "objective": self.objective,
            "entries": [[*name, *of] for name, *of in zip(self.names, *numbers, strict=True)],
            "level": dict(self.level),
        }


@dataclass(frozen=True, slots=True)
class Kept:
    """A account as it was given away in a round: while its very `entries` come back, they need not
    be read.
    """

    entries: object
    classes: JobClasses
    account: ServiceAccount


def from_memory(
    memory: Mapping[str, Any], policy: str, classes: JobClasses, kept: Kept | None = None
) -> ServiceAccount | None:
    """The account that this policy's plan kept, with the numbers that its rows have now; None where
    there is none.

    `kept`: that of the round before, if that was here. Only its entries are believed, and only if
    they are the same object: whoever changes a memory writes new ones.
    """
    if (memory.get("policy"), memory.get("version")) != (policy, VERSION):
        return None
    told = {name: memory[name] for name in TOLD}
    is_kept = kept is not None and kept.entries is memory["entries"]
    if kept is not None and is_kept and kept.classes.names_the_same(classes):
        return kept.account.going_on(**told)
    entries = kept.account.numbers if kept is not None and is_kept else _read(memory["entries"])
    row_of, column_of, names = classes.row_of, classes.column_of, entries["names"]
    return ServiceAccount(
        policy=policy,
        row=frozen(np.array([row_of.get(key, NOBODY) for key, _ in names], dtype=np.int64)),
        column=frozen(
            np.array([column_of.get(column, NOBODY) for _, column in names], dtype=np.int64)
        ),
        **entries,
        **told,
    )


def _read(entries: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """`ServiceAccount.numbers` of plain data."""
    keys, columns, *numbers = zip(*entries, strict=True) if entries else [()] * 5
    arrays = [frozen(np.array(values, dtype=np.float64)) for values in numbers]
    return dict(zip(NUMBERS, (tuple(zip(keys, columns, strict=True)), *arrays), strict=True))


def opened(
    policy: str,
    problem: str,
    classes: JobClasses,
    shares: Shares,
    now_s: float,
    round_s: float,
    before: ServiceAccount | None,
) -> ServiceAccount:
    """A new account for shares just made of this problem (its fingerprint); rows that had one
    before take along how they stood.

    Time received counts from now on (Gavel, section 5). Were nothing taken along, then with events
    in every round whoever has a small share would always be the one who is lag least, and never
    run.
    """
    row, column, share = _entries(shares)
    columns, keys = tuple(classes.column_of), classes.row_keys
    names = tuple(
        [(keys[r], columns[c]) for r, c in zip(row.tolist(), column.tolist(), strict=True)]
    )
    ahead_s = (
        np.zeros(len(row)) if before is None else _taken_along(names, share, before, now_s, round_s)
    )
    return ServiceAccount(
        policy=policy, problem=problem, made_s=now_s, seen_s=now_s,
        round_end_s=now_s if before is None else before.round_end_s,
        objective=shares.objective, names=names, row=frozen(row), column=frozen(column),
        share=frozen(share),
        received_s=frozen(np.zeros(len(row))), ahead_s=frozen(ahead_s),
        level={} if before is None else before.level,
    )  # fmt: skip


def _entries(shares: Shares) -> tuple[Ints, Ints, Floats]:
    """(row, column, share) of what is more than a solver's zero, by row."""
    table = np.concatenate([shares.alone, shares.paired]) if len(shares.paired) else shares.alone
    row, column = np.nonzero(table > SMALLEST_SHARE)
    return row, column, table[row, column]


def _taken_along(
    names: Sequence[tuple[str, str]],
    share: Floats,
    before: ServiceAccount,
    now_s: float,
    round_s: float,
) -> Floats:
    stood = dict(zip(before.names, (-before.lag_s(now_s)).tolist(), strict=True))
    ahead = np.array([stood.get(name, 0.0) for name in names], dtype=np.float64)
    unit = round_s * np.maximum(share, 1.0)
    taken: Floats = np.clip(ahead, -MOST_BEHIND * unit, MOST_AHEAD * unit)
    return taken
