"""Kinds with partly measured pairs, made of kinds whose pairs are all known. Pure.

Gavel's section 7.6 and figure 14: the loss by estimates against an oracle.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policies.contract.snapshot import KindView, Source
from profiling.pairs.estimates import (
    ErrorSummary,
    Rates,
    errors_of,
    pair_rates,
    views_of_pair,
    worth_sharing,
)
from profiling.pairs.fingerprints import Alone, Book, Pair, references_of, retained_of


@dataclass(frozen=True, slots=True)
class PartlyMeasured:
    """Kinds as policies see them, and the errors of all estimates, hidden ones included."""

    kinds: tuple[KindView, ...]
    errors: ErrorSummary


def with_estimates(kinds: Sequence[KindView], observed: float, *, seed: int = 0) -> PartlyMeasured:
    """Hide all but the fraction `observed` of pairs, drawn by the seed, and estimate the others.

    Only estimates worth sharing are shown. ValueError for a fraction outside [0, 1],
    CompletionError where the completion does not converge.
    """
    if not 0.0 <= observed <= 1.0:
        raise ValueError(f"observed must be in [0, 1], not {observed}")
    alone, truth = _alone(kinds), _truth(kinds)
    drawn = np.random.default_rng(seed).random(len(truth)) < observed
    measured = {
        pair: rates for (pair, rates), is_in in zip(truth.items(), drawn, strict=True) if is_in
    }
    guessed = _estimates(sorted(k.id for k in kinds), measured, alone, seed)
    missing = {pair: rates for pair, rates in truth.items() if pair not in measured}
    told = [view for pair in measured for view in views_of_pair(pair, truth[pair], Source.MEASURED)]
    for pair, rates in guessed.items():
        if pair in missing and worth_sharing(pair, rates, alone):
            told += views_of_pair(pair, rates, Source.ESTIMATED)
    found = {
        k.id: sorted((v for kind, v in told if kind == k.id), key=lambda v: (v.gpu_type, v.other))
        for k in kinds
    }
    return PartlyMeasured(
        tuple(replace(k, pairs=tuple(found[k.id])) for k in kinds),
        ErrorSummary.of(errors_of(guessed, missing)),
    )


def _alone(kinds: Iterable[KindView]) -> Alone:
    return {
        (k.id, t.gpu_type): t.steps_per_s
        for k in kinds
        for t in k.throughputs
        if t.gpus == 1 and not t.spread
    }


def _truth(kinds: Sequence[KindView]) -> dict[Pair, Rates]:
    names = {k.id for k in kinds}
    found: dict[Pair, Rates] = {}
    for k in kinds:
        for p in k.pairs:
            if p.other in names and k.id <= p.other:
                found[k.id, p.other, p.gpu_type] = p.steps_per_s, p.other_steps_per_s
            elif p.other in names:
                found[p.other, k.id, p.gpu_type] = p.other_steps_per_s, p.steps_per_s
    return dict(sorted(found.items()))


def _estimates(
    kinds: Sequence[str], measured: dict[Pair, Rates], alone: Alone, seed: int
) -> dict[Pair, Rates]:
    retained = retained_of(measured, alone)
    if len(references_of(retained)) < 2:
        return {}
    return pair_rates(Book.of(retained, seed=seed), kinds, alone)
