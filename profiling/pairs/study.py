"""Kinds with partly measured pairs, made from kinds whose pairs are all known. Pure.

They show the loss by estimates against an oracle (Gavel, section 7.6 and figure 14).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policies.contract.snapshot import KindView, PairThroughput, Source
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

    Only estimates worth sharing are shown. Raises ValueError for a fraction outside [0, 1], and
    CompletionError if the completion does not converge.
    """
    # 1. Draw the measured pairs, and estimate the hidden ones.
    if not 0.0 <= observed <= 1.0:
        raise ValueError(f"observed must be in [0, 1], not {observed}")
    alone = _alone(kinds)
    measured = {}
    hidden = {}
    all_pairs = _all_pairs(kinds)
    drawn = np.random.default_rng(seed).random(len(all_pairs)) < observed
    for (pair, rates), is_drawn in zip(all_pairs.items(), drawn, strict=True):
        if is_drawn:
            measured[pair] = rates
        else:
            hidden[pair] = rates
    estimated = _estimates(sorted(kind.id for kind in kinds), measured, alone, seed)

    # 2. Measured pairs, and estimates worth sharing, as the kinds' views show them.
    views: list[tuple[str, PairThroughput]] = []
    for pair, rates in measured.items():
        views += views_of_pair(pair, rates, Source.MEASURED)
    for pair, rates in estimated.items():
        if pair in hidden and worth_sharing(pair, rates, alone):
            views += views_of_pair(pair, rates, Source.ESTIMATED)
    shown_kinds = []
    for kind in kinds:
        own = [view for kind_id, view in views if kind_id == kind.id]
        own.sort(key=lambda view: (view.gpu_type, view.other))
        shown_kinds.append(replace(kind, pairs=tuple(own)))
    return PartlyMeasured(tuple(shown_kinds), ErrorSummary.of(errors_of(estimated, hidden)))


def _alone(kinds: Iterable[KindView]) -> Alone:
    """Return the kinds' speeds on one GPU."""
    speeds = {}
    for kind in kinds:
        for throughput in kind.throughputs:
            if throughput.gpus == 1 and not throughput.spread:
                speeds[kind.id, throughput.gpu_type] = throughput.steps_per_s
    return speeds


def _all_pairs(kinds: Sequence[KindView]) -> dict[Pair, Rates]:
    """Return the true speeds of all pairs of these kinds, each once, in order."""
    names = {kind.id for kind in kinds}
    rates: dict[Pair, Rates] = {}
    for kind in kinds:
        for pair in kind.pairs:
            own = pair.steps_per_s
            others = pair.other_steps_per_s
            if pair.other in names and kind.id <= pair.other:
                rates[kind.id, pair.other, pair.gpu_type] = (own, others)
            elif pair.other in names:
                rates[pair.other, kind.id, pair.gpu_type] = (others, own)
    return dict(sorted(rates.items()))


def _estimates(
    kinds: Sequence[str], measured: dict[Pair, Rates], alone: Alone, seed: int
) -> dict[Pair, Rates]:
    """Return estimated speeds of all pairs; {} with fewer than two reference kinds."""
    retained = retained_of(measured, alone)
    if len(references_of(retained)) < 2:
        return {}
    return pair_rates(Book.of(retained, seed=seed), kinds, alone)
