"""Errors of estimated pairs: `python -m experiments.bench.profiling.estimator TABLES`.

TABLES is Gavel's `simulation_throughputs.json` (26 kinds of one GPU, three GPU types). Prints JSON
lines: the median relative error with mean and 90th percentile, and how many pairs were wrongly held
for possible or impossible. Lines:

- "20% of pairs observed": that part of all pairs is drawn by the seed, everything else estimated;
  beside it the mean of what was observed beside the same kind, which is what there is without an
  estimator. `decided` is the part of the pairs for which it is right whether sharing is worth it
  (normalised throughputs add up to more than 1), `worth` the part for which it is.
- "new kind beside 3 partners": all others are measured, one kind beside three only, each kind in
  turn; "model unknown": without the kinds that differ from it in batch size alone, so that it has
  no twin among the references.
- "alone on a type from another": speeds alone, by the pool of all kinds (profiling.estimates) and
  by the like references.

`--choose`: held-out errors of ranks and regularisations instead, from which
`profiling.pairs.completion.Settings` has its values.
"""

import argparse
import json
from ast import literal_eval
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from experiments.bench.figures import Figure, figure, show
from profiling.estimates import Pool, estimate
from profiling.pairs.completion import CANDIDATES, Floats, Settings, held_out_error
from profiling.pairs.estimates import Choice, ErrorSummary, PairError, next_partners
from profiling.pairs.fingerprints import (
    LEAVES,
    RETAINS,
    USUAL,
    Alone,
    Book,
    Pair,
    Retained,
    Rules,
    retained_of,
)

TYPES = ("v100", "p100", "k80")
TFLOPS = {"v100": 15.7, "p100": 9.3, "k80": 4.1}
"""Single precision, by the data sheets."""

ORIGIN = "v100"
PAPER = replace(USUAL, nearest_weight=1.0)


def read(path: Path) -> tuple[Retained, Alone]:
    """Fractions and own speeds of the kinds of one GPU in Gavel's tables."""
    raw = json.loads(path.read_text())
    rates: dict[Pair, tuple[float, float]] = {}
    alone: dict[tuple[str, str], float] = {}
    for gpu_type in TYPES:
        for key, row in raw[gpu_type].items():
            kind, gpus = literal_eval(key)
            if gpus == 1:
                alone[kind, gpu_type] = row["null"]
                rates |= {
                    (kind, literal_eval(k)[0], gpu_type): tuple(v)
                    for k, v in row.items()
                    if k != "null"
                }
    return retained_of(rates, alone), alone


def a_part(truth: Retained, fraction: float, seed: int) -> dict[Pair, float]:
    """This part of all pairs, both numbers of each."""
    pairs = sorted({(min(k, q), max(k, q), t) for k, q, t in truth})
    drawn = np.random.default_rng(seed).random(len(pairs)) < fraction
    seen = {pair for pair, is_in in zip(pairs, drawn, strict=True) if is_in}
    return {pair: s for pair, s in truth.items() if (min(pair[:2]), max(pair[:2]), pair[2]) in seen}


def errors(
    book: Book, truth: Retained, seen: Retained, only: str | None = None
) -> tuple[list[PairError], int]:
    """(what was not seen against what is estimated, how many numbers had no estimate)."""
    kinds, at = book.kinds, {kind: i for i, kind in enumerate(book.kinds)}
    shares, of_type = book.estimates(kinds), {t: i for i, t in enumerate(book.types)}
    found, without = [], 0
    for (kind, beside, gpu_type), measured in truth.items():
        if (
            (kind, beside, gpu_type) in seen
            or not {kind, beside} <= at.keys()
            or (only and only not in (kind, beside))
        ):
            continue
        guess = float(shares[of_type[gpu_type], at[kind], at[beside]])
        if np.isfinite(guess):
            found.append(PairError(kind, beside, gpu_type, guess, measured))
        else:
            without += 1
    return found, without


def partly_observed(truth: Retained, fraction: float, seeds: int) -> Iterator[Figure]:
    """A part of all pairs is known."""
    for name, rules in (("estimated", USUAL), ("nearest reference alone", PAPER)):
        found: list[PairError] = []
        without, began_s = 0, process_time()
        for seed in range(seeds):
            seen = a_part(truth, fraction, seed)
            more, missing = errors(Book.of(seen, rules=rules, seed=seed), truth, seen)
            found, without = found + more, without + missing
        took = {"without": without, "s_each": (process_time() - began_s) / seeds}
        yield _figure(f"{fraction:.0%} of pairs observed, {name}", found, **_decided(found), **took)
    baseline = [
        e for seed in range(seeds) for e in _beside_the_same(truth, a_part(truth, fraction, seed))
    ]
    yield _figure(
        f"{fraction:.0%} of pairs observed, mean beside the same kind",
        baseline,
        **_decided(baseline),
    )


def _decided(found: list[PairError]) -> dict[str, float]:
    """Errors come seed after seed, so a pair's other number is the next one told of it."""
    waiting: dict[Pair, PairError] = {}
    right = worth = count = 0
    for e in found:
        other = e if e.kind == e.beside else waiting.pop((e.beside, e.kind, e.gpu_type), None)
        if other is None:
            waiting[e.kind, e.beside, e.gpu_type] = e
            continue
        is_worth = e.measured + other.measured > 1.0
        right, worth, count = (
            right + (is_worth == (e.estimated + other.estimated > 1.0)),
            worth + is_worth,
            count + 1,
        )
    return {"decided": round(right / max(count, 1), 4), "worth": round(worth / max(count, 1), 4)}


def _beside_the_same(truth: Retained, seen: Retained) -> Iterator[PairError]:
    """The mean of what others retain beside the same kind on the same type."""
    known: dict[tuple[str, str], list[float]] = {}
    for (_, beside, gpu_type), fraction in seen.items():
        if fraction > 0:
            known.setdefault((beside, gpu_type), []).append(fraction)
    for (kind, beside, gpu_type), measured in truth.items():
        if (kind, beside, gpu_type) not in seen and (beside, gpu_type) in known:
            yield PairError(
                kind, beside, gpu_type, float(np.mean(known[beside, gpu_type])), measured
            )


def new_kinds(truth: Retained, partners: int, seeds: int) -> Iterator[Figure]:
    """Each kind in turn is new, all others are known."""
    for choice, twins, types, rules in product(
        Choice, (True, False), (TYPES, (ORIGIN,)), (USUAL, PAPER)
    ):
        found: list[PairError] = []
        without = 0
        for seed in range(seeds if choice is Choice.RANDOM else 1):
            for kind in sorted({k for k, _, _ in truth}):
                more, missing = _as_new(
                    truth, kind, partners, choice, seed, twins=twins, types=types, rules=rules
                )
                found, without = found + more, without + missing
        one_type = f", measured on {ORIGIN} alone" * (len(types) == 1)
        where = f"{', model unknown' * (not twins)}{one_type}"
        how = "" if rules is USUAL else ", nearest reference alone"
        yield _figure(
            f"new kind beside {partners} {choice.value} partners{where}{how}",
            found,
            without=without,
        )


def _as_new(
    truth: Retained,
    kind: str,
    partners: int,
    choice: Choice,
    seed: int,
    *,
    twins: bool,
    types: tuple[str, ...],
    rules: Rules,
) -> tuple[list[PairError], int]:
    book, seen, others = _introduced(
        truth, kind, partners, choice, seed, twins=twins, types=types, rules=rules
    )
    known = {p: s for p, s in truth.items() if {*p[:2]} <= others | {kind}}
    return errors(book, known, seen, only=kind)


def _introduced(
    truth: Retained,
    kind: str,
    partners: int,
    choice: Choice,
    seed: int,
    *,
    twins: bool,
    types: tuple[str, ...],
    rules: Rules = USUAL,
) -> tuple[Book, Retained, set[str]]:
    """Estimates after the kind was measured beside chosen partners on each of the types."""
    others = _others(truth, kind, twins)
    seen = {pair: s for pair, s in truth.items() if {*pair[:2]} <= others}
    book = Book.of(seen, sorted(others), rules=rules, seed=seed)
    chosen = [
        p.reference
        for p in next_partners(
            book, kind, (types[0],), partners, choice=choice, seed=seed + hash_of(kind)
        )
    ]
    for reference, gpu_type in product(chosen, types):
        for pair in ((kind, reference, gpu_type), (reference, kind, gpu_type)):
            seen[pair] = truth[pair]
    return Book.of(seen, sorted(others), rules=rules, seed=seed), seen, others


def _others(truth: Retained, kind: str, twins: bool) -> set[str]:
    """The other kinds, without those of the same model unless `twins`."""
    return {k for k, _, _ in truth if k != kind and (twins or _model(k) != _model(kind))}


def hash_of(kind: str) -> int:
    """A number of the name, the same in every process."""
    return sum(map(ord, kind))


def _model(kind: str) -> str:
    return kind.split(" (batch")[0]


def alone(truth: Retained, speeds: Alone) -> Iterator[Figure]:
    """Own speeds on two types from the third."""
    for twins in (True, False):
        found = []
        for kind in sorted({k for k, _, _ in truth}):
            others = _others(truth, kind, twins)
            told = {
                (k, t): s
                for (k, t), s in speeds.items()
                if s > 0 and (k in others or (k == kind and t == ORIGIN))
            }
            pooled = _pooled(kind, told)
            for gpu_type in TYPES[1:]:
                measured = speeds[kind, gpu_type]
                found.append(PairError(kind, "", gpu_type, pooled[gpu_type, 1], measured))
        unknown = "" if twins else ", model unknown"
        yield _figure(f"alone on a type from {ORIGIN}, by all kinds{unknown}", found)


def _pooled(kind: str, told: Alone) -> Mapping[tuple[str, int], float]:
    of: dict[str, dict[tuple[str, int], float]] = {}
    for (k, gpu_type), speed in told.items():
        of.setdefault(k, {})[gpu_type, 1] = speed
    return estimate(
        kind,
        of[kind],
        [(t, 1) for t in TYPES],
        Pool.of(TFLOPS, {k: v for k, v in of.items() if k != kind}),
    )


def chosen(truth: Retained, fraction: float, seeds: int) -> Iterator[Figure]:
    """Held-out errors of the candidates, on what was observed alone."""
    books = [Book.of(a_part(truth, fraction, seed), seed=seed) for seed in range(seeds)]
    for settings in CANDIDATES:
        errors = [_held_out(book, settings, seed) for seed, book in enumerate(books)]
        name = (
            f"held out of {fraction:.0%}, rank {settings.rank}, regularisation"
            f" {settings.regularisation:g}"
        )
        yield figure(name, float(np.mean(errors)), None, "fraction, root mean square")


def _held_out(book: Book, settings: Settings, seed: int) -> float:
    """Every number stands in two rows: both leave together."""
    observed = book.retained.observed
    rows, columns = (observed.any(axis=axis) for axis in (1, 0))
    values: Floats = np.where(observed, book.retained.values, 0.0)
    columns_of = list(product(book.types, book.references, (RETAINS, LEAVES)))
    names: dict[Pair, int] = {}
    told = [
        [(k, r, t) if side == RETAINS else (r, k, t) for t, r, side in columns_of]
        for k in book.kinds
    ]
    groups = np.array(
        [[names.setdefault(pair, len(names)) for pair in row] for row in told], dtype=np.int64
    )
    part = np.ix_(rows, columns)
    return held_out_error(values[part], observed[part], settings, seed=seed, groups=groups[part])


def _figure(name: str, found: list[PairError], **more: Any) -> Figure:
    summary = asdict(ErrorSummary.of(found))
    middle = summary.pop("median")
    facts = {k: round(v, 4) if isinstance(v, float) else v for k, v in summary.items()}
    cannot = sum(e.measured == 0 for e in found)
    return figure(name, middle, None, "relative error", **facts, cannot_share=cannot, **more)


def main() -> None:
    """Print the lines as they are measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path, help="path of Gavel's simulation_throughputs.json")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--observed",
        type=float,
        nargs="*",
        default=[0.1, 0.2, 0.5],
        help="parts of all pairs that are observed",
    )
    parser.add_argument("--partners", type=int, nargs="*", default=[2, 3, 5])
    parser.add_argument(
        "--choose", action="store_true", help="held-out errors of ranks and regularisations instead"
    )
    options = parser.parse_args()
    truth, speeds = read(options.tables)
    for fraction in options.observed:
        lines = (
            chosen(truth, fraction, options.seeds)
            if options.choose
            else partly_observed(truth, fraction, options.seeds)
        )
        show(lines)
    if options.choose:
        return
    for partners in options.partners:
        show(new_kinds(truth, partners, options.seeds))
    show(alone(truth, speeds))


if __name__ == "__main__":
    main()
