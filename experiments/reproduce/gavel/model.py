"""Experiments: series (a policy each) over points, and the paper's claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Better = Literal["more", "less", "near"]
Spec = Mapping[str, Any]
"""Plain JSON data that decides a cell's result (see `cells.Cell`)."""


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a chart; `more` is added to its cells' spec: policy and parameters."""

    label: str
    more: Spec

    @classmethod
    def of(cls, label: str, policy: str, **parameters: Any) -> Series:
        """A registered policy."""
        return cls(label, {"policy": policy, "parameters": parameters})


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure of the paper's (or of the published program's, by the specification) to compare
    with.

    The value here is `metric` of the series `of` at the point `at` or, with `over`, that of `over`
    divided by it. Without `at` it is the greatest of all points where `better` is "more", else that
    of the last. `whole`: both hold for the whole experiment only; a quick one is not compared with
    `published`, and its verdict on `paper` says what it is of.
    """

    words: str
    metric: str
    of: str
    over: str | None = None
    at: float | None = None
    paper: float | None = None
    published: float | None = None
    better: Better = "more"
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """A metric over the points; kind quantiles: a distribution at the last point."""

    metric: str
    title: str
    kind: Literal["lines", "quantiles", "shares", "totals"] = "lines"
    log: bool = False


@dataclass(frozen=True, slots=True)
class Experiment:
    """A figure or table of the paper. `specs[x]` is what the cells of a point have in common; every
    series has a cell at each.

    `seeds`: so many of those asked for at most. `skips`: (series, x) that make no sense. `note`:
    how it differs from the paper's.
    """

    id: str
    title: str
    x_title: str
    specs: Mapping[float, Spec]
    series: tuple[Series, ...]
    charts: tuple[Chart, ...]
    claims: tuple[Claim, ...]
    note: str
    seeds: int = 100
    skips: frozenset[tuple[str, float]] = field(default_factory=frozenset)

    def points(self) -> Iterator[tuple[Series, float, Spec]]:
        """Every series at every point with what decides it, but for the seed."""
        for x, spec in self.specs.items():
            for series in self.series:
                if (series.label, x) not in self.skips:
                    yield series, x, {**spec, **series.more}
