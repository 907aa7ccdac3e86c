"""Pairs of kinds that share a GPU as policies see them: some estimated, until they run.

Unknown pairs are estimated from known ones (`profiling.pairs.study`, Gavel's section 6). Two jobs
of one GPU each side by side are a measurement: the first replaces an estimate, later ones are
smoothed exponentially (`profiling.speeds`), as live. Estimates of other pairs stay.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Self

from controlplane.simulation.world.job_table import Launch
from controlplane.simulation.world.outcome import PairEstimates
from policies.contract.snapshot import KindView, PairThroughput, Source
from profiling.pairs.estimates import ErrorSummary, PairError
from profiling.pairs.study import with_estimates
from profiling.speeds import moved

Sides = tuple[float, float]


class ObservedPairs:
    """Knowledge of pairs so far. `kinds`: with the pairs that policies see at first."""

    def __init__(self, kinds: Sequence[KindView], observed: float, seed: int) -> None:
        """ValueError and CompletionError as `profiling.pairs.study.with_estimates`."""
        found = with_estimates(kinds, observed, seed=seed)
        self.kinds = found.kinds
        self.first = found.errors
        self.number_measured = 0
        self._known = {(k.id, p.other, p.gpu_type): p for k in found.kinds for p in k.pairs}
        self._samples = {key: int(p.source is Source.MEASURED) for key, p in self._known.items()}
        self._ran: list[PairError] = []
        self._open: list[tuple[Launch, Launch, str]] = []
        self._changed: set[str] = set()

    @classmethod
    def of(cls, kinds: Sequence[KindView], observed: float, seed: int) -> Self | None:
        """Return the knowledge of pairs; None where all of them are observed."""
        return cls(kinds, observed, seed) if observed < 1.0 else None

    def meet(self, there: Sequence[Launch], gpu_type: str) -> None:
        """Note two launches that now share a GPU alone, without other GPUs."""
        self._open = [
            o for o in self._open if not any(launch is one for launch in o[:2] for one in there)
        ]
        gpus = [sum(len(seat.devices) for seat in launch.ranks) for launch in there]
        if gpus == [1, 1]:
            self._open.append((there[0], there[1], gpu_type))

    def look(self, now_s: float, kinds: Sequence[str]) -> None:
        """Record speeds of those that worked side by side; `kinds` of jobs, by row."""
        left = []
        for one, other, gpu_type in self._open:
            if _works(one, now_s) and _works(other, now_s):
                self.learn(
                    (kinds[one.row], kinds[other.row], gpu_type),
                    (one.steps_per_s, other.steps_per_s),
                )
            elif one.goes_on and other.goes_on:
                left.append((one, other, gpu_type))
        self._open = left

    def learn(self, pair: tuple[str, str, str], rates: Sides) -> None:
        """Record that a pair of kinds ran at these speeds on the type; 0: impossible."""
        kind, other, gpu_type = pair
        known, samples = self._known.get(pair), self._samples.get(pair, 0)
        if known is not None and samples == 0:
            self._ran += _errors(known, kind, rates)
        own, others = _next(known, rates, samples)
        self.number_measured += 1
        self._tell(kind, PairThroughput(other, gpu_type, own, others, Source.MEASURED), samples + 1)
        if kind != other:
            self._tell(
                other, PairThroughput(kind, gpu_type, others, own, Source.MEASURED), samples + 1
            )

    def changed(self, kinds: Iterable[KindView]) -> Iterator[KindView]:
        """Yield those of these kinds with new pair knowledge."""
        for kind in kinds if self._changed else ():
            if kind.id in self._changed:
                yield replace(
                    kind, pairs=tuple(p for (of, _, _), p in self._known.items() if of == kind.id)
                )
        self._changed.clear()

    def estimates(self) -> PairEstimates:
        """Errors of the estimates."""
        return PairEstimates(self.first, ErrorSummary.of(self._ran), self.number_measured)

    def _tell(self, kind: str, view: PairThroughput, samples: int) -> None:
        key = kind, view.other, view.gpu_type
        if self._known.get(key) != view:
            self._changed.add(kind)
        self._known[key], self._samples[key] = view, samples


def _works(launch: Launch, now_s: float) -> bool:
    until_s = now_s if launch.stop_wanted_s is None else launch.stop_wanted_s
    return min(until_s, launch.end_s) > launch.first_step_s


def _next(known: PairThroughput | None, rates: Sides, samples: int) -> Sides:
    if known is None:
        return rates
    before = known.steps_per_s, known.other_steps_per_s
    return moved(before[0], rates[0], samples), moved(before[1], rates[1], samples)


def _errors(known: PairThroughput, kind: str, rates: Sides) -> list[PairError]:
    return [
        PairError(kind, known.other, known.gpu_type, known.steps_per_s, rates[0]),
        PairError(known.other, kind, known.gpu_type, known.other_steps_per_s, rates[1]),
    ]
