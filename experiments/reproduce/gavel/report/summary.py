"""Means over seeds, and what the paper says beside what was found."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.reproduce.gavel.model import Claim, Experiment

CLOSE = 0.05
"""A figure within this part of the one it is compared with agrees."""

MANIFOLD = 2.0
"""Figures further apart than this are told by their ratio."""

Row = Mapping[str, Any]
Point = Mapping[str, Any]
"""{"series", "x", "seeds", "errors": [...], "means": {metric: mean}, "deviations": {metric:
deviation}, "lists": {...}}.
"""


def points_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One entry for each series and x of an experiment's rows: means and standard deviations (of
    two seeds or more) of its numbers, and lists of numbers averaged place by place; what failed
    counts nowhere, its errors are kept.
    """
    groups: dict[tuple[str, float], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["series"], row["x"]].append(row)
    return [_point(series, x, of) for (series, x), of in groups.items()]


def _point(series: str, x: float, rows: Sequence[Row]) -> dict[str, Any]:
    good = [{**row, **row.get("timing", {})} for row in rows if "error" not in row]
    numbers = {
        m
        for row in good
        for m, v in row.items()
        if isinstance(v, int | float) and m not in ("x", "seed")
    }
    known = {m: [float(row[m]) for row in good if row.get(m) is not None] for m in sorted(numbers)}
    return {
        "series": series,
        "x": x,
        "seeds": len(good),
        "errors": sorted({row["error"] for row in rows if "error" in row}),
        "means": {m: float(np.mean(values)) for m, values in known.items()},
        "deviations": {
            m: float(np.std(values, ddof=1)) for m, values in known.items() if len(values) > 1
        },
        "lists": _lists(good),
    }


def _lists(rows: Sequence[Row]) -> dict[str, Any]:
    """Quantiles averaged over seeds; other lists of the first seed."""
    names = sorted({m for row in rows for m, v in row.items() if isinstance(v, list)})
    known = {m: [row[m] for row in rows if row.get(m) is not None] for m in names}
    return {
        m: np.mean(values, axis=0).tolist() if "quantiles" in m else values[0]
        for m, values in known.items()
        if values
    }


def claims_of(
    experiment: Experiment, points: Sequence[Point], *, whole: bool
) -> list[dict[str, Any]]:
    """The claims with `here` (None if unknown), `at` and a verdict."""
    return [_judged(claim, points, whole=whole) for claim in experiment.claims]


def _judged(claim: Claim, points: Sequence[Point], *, whole: bool) -> dict[str, Any]:
    here, at = _here(claim, points)
    published = claim.published if whole or not claim.whole else None
    told = {
        "words": claim.words,
        "paper": claim.paper,
        "published": claim.published,
        "here": here,
        "at": at,
    }
    if here is None:
        return {**told, "verdict": _why_not(claim, points)}
    sources = (("the paper", claim.paper), ("the published program", published))
    part = "" if whole or not claim.whole else " (a quick run)"
    verdicts = [
        f"{_verdict(claim, here, of)} {name}{part}" for name, of in sources if of is not None
    ]
    if claim.published is not None and published is None:
        verdicts.append("not comparable: the published figure is of the full size")
    return {**told, "verdict": "; ".join(verdicts) or "nothing printed to compare with"}


def _here(claim: Claim, points: Sequence[Point]) -> tuple[float | None, float | None]:
    """(the value, at which x)."""
    found = {
        x: v
        for x in sorted({p["x"] for p in points})
        if (v := _value(claim, points, x)) is not None
    }
    if claim.at is not None:
        return found.get(claim.at), claim.at
    if not found:
        return None, None
    x = max(found, key=lambda x: found[x]) if claim.better == "more" else max(found)
    return found[x], x


def _value(claim: Claim, points: Sequence[Point], x: float) -> float | None:
    of = _mean(points, claim.of, x, claim.metric)
    if claim.over is None or of is None:
        return of
    over = _mean(points, claim.over, x, claim.metric)
    return over / of if over is not None and of > 0.0 else None


def _mean(points: Sequence[Point], series: str, x: float, metric: str) -> float | None:
    values = [p["means"].get(metric) for p in points if (p["series"], p["x"]) == (series, x)]
    return values[0] if values else None


def _why_not(claim: Claim, points: Sequence[Point]) -> str:
    errors = sorted(
        {e for p in points if p["series"] in (claim.of, claim.over) for e in p["errors"]}
    )
    if errors:
        return f"not run: {'; '.join(errors)}"
    return (
        "not run"
        if claim.at is None or claim.at in {p["x"] for p in points}
        else f"not run at {claim.at:g}"
    )


def _verdict(claim: Claim, here: float, there: float) -> str:
    apart = here / there - 1.0 if there else (0.0 if here == 0.0 else float("inf"))
    if abs(apart) <= CLOSE:
        return "agrees with"
    if claim.better == "near":
        return f"{_percent(apart)} {'above' if apart > 0 else 'below'}"
    good = (apart > 0.0) == (claim.better == "more")
    if here > 0.0 and there > 0.0 and (factor := max(here / there, there / here)) >= MANIFOLD:
        times = f"{factor:,.0f}" if factor >= 10.0 else f"{factor:.2g}"
        return f"{times} times {'better' if good else 'worse'} than"
    return f"{'better' if good else 'worse'} by {_percent(apart)} than"


def _percent(apart: float) -> str:
    return "any measure" if np.isinf(apart) else f"{abs(apart):.0%}"


def remarks_of(experiment: Experiment, points: Sequence[Point]) -> list[str]:
    """Remarks on what was run: sharing that never happened, jobs that never ended."""
    found = []
    asked = {
        s.label for s in experiment.series if s.more.get("parameters", {}).get("form") == "sharing"
    }
    for label in sorted(asked):
        hours = [
            p["means"]["shared_gpu_h"]
            for p in points
            if p["series"] == label and "shared_gpu_h" in p["means"]
        ]
        if hours and not any(hours):
            found.append(
                f"{label}: no two jobs ever shared a GPU in these runs, so that its figures say"
                " nothing about sharing."
            )
    for p in points:
        if p["means"].get("unfinished"):
            found.append(
                f"{p['series']} at {p['x']:g}: {p['means']['unfinished']:g} of the jobs that count"
                " never end."
            )
    return found
