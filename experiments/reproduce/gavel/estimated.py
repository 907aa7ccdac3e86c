"""A policy that is told estimates of pairs instead of what they really do (figure 14)."""

from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from policies.contract.plan import Plan
from policies.contract.policy import Policy
from policies.contract.snapshot import KindView, PairThroughput, Snapshot, Source
from profiling.pairs.fingerprints import Alone, Book, Pair, Retained, retained_of


@dataclass(frozen=True)
class GroupingKey:
    """The policy under other kinds: the world runs by its own."""

    policy: Policy
    kinds: tuple[KindView, ...]

    def __call__(self, snapshot: Snapshot) -> Plan:
        """The policy's plan, as if these were the kinds."""
        return self.policy(snapshot.following(kinds=self.kinds))


def told_of(kinds: tuple[KindView, ...], observed: float, seed: int) -> tuple[KindView, ...]:
    """Kinds of which a drawn part of all pairs is measured, the rest estimated."""
    truth, alone = _truth(kinds)
    seen = _a_part(truth, observed, seed)
    book = Book.of(seen, seed=seed)
    names = [k.id for k in kinds]
    guesses = book.estimates(names)
    return tuple(
        replace(kind, pairs=_pairs(kind.id, names, book, guesses, seen, alone)) for kind in kinds
    )


def _truth(kinds: tuple[KindView, ...]) -> tuple[Retained, Alone]:
    """Parts of their own speeds that kinds keep beside others, and those speeds."""
    alone = {
        (k.id, t.gpu_type): t.steps_per_s
        for k in kinds
        for t in k.throughputs
        if (t.gpus, t.spread) == (1, False)
    }
    names = {k.id for k in kinds}
    rates: dict[Pair, tuple[float, float]] = {
        (k.id, p.other, p.gpu_type): (p.steps_per_s, p.other_steps_per_s)
        for k in kinds
        for p in k.pairs
        if p.other in names and (k.id, p.gpu_type) in alone and (p.other, p.gpu_type) in alone
    }
    return retained_of(rates, alone), alone


def _a_part(truth: Retained, part: float, seed: int) -> dict[Pair, float]:
    """This part of all pairs, both numbers of each."""
    pairs = sorted({(min(k, q), max(k, q), t) for k, q, t in truth})
    drawn = np.random.default_rng(seed).random(len(pairs)) < part
    kept = {pair for pair, is_in in zip(pairs, drawn, strict=True) if is_in}
    return {(k, q, t): s for (k, q, t), s in truth.items() if (min(k, q), max(k, q), t) in kept}


def _pairs(
    kind: str,
    names: list[str],
    book: Book,
    guesses: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    seen: Retained,
    alone: Alone,
) -> tuple[PairThroughput, ...]:
    me, found = names.index(kind), []
    for t, gpu_type in enumerate(book.types):
        for you, other in enumerate(names):
            own, others = float(guesses[t, me, you]), float(guesses[t, you, me])
            if (
                isfinite(own)
                and isfinite(others)
                and (kind, gpu_type) in alone
                and (other, gpu_type) in alone
            ):
                source = Source.MEASURED if (kind, other, gpu_type) in seen else Source.ESTIMATED
                rates = own * alone[kind, gpu_type], others * alone[other, gpu_type]
                found.append(PairThroughput(other, gpu_type, *rates, source))
    return tuple(found)
