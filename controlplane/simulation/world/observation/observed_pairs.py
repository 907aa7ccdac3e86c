"""Pairs of kinds that share a GPU as policies see them: some estimated, until they run.

Unknown pairs are estimated from known ones (`profiling.pairs.study`, Gavel's section 6). Two jobs
of one GPU each side by side are a measurement: the first replaces an estimate, later ones are
smoothed exponentially (`profiling.speeds`), as live. Estimates of other pairs stay.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Self, TypeAlias

from controlplane.simulation.cluster.launch import Launch
from controlplane.simulation.world.outcome import PairEstimates
from policies.contract.snapshot import KindView, PairThroughput, Source
from profiling.pairs.estimates import ErrorSummary, PairError
from profiling.pairs.study import with_estimates
from profiling.speeds import moved

PairKey: TypeAlias = tuple[str, str, str]
"""(kind, other kind, GPU type)."""

PairSpeed: TypeAlias = tuple[float, float]
"""steps/s of a job of the first kind and of one of the other."""


class _SideBySide(NamedTuple):
    """Two launches that share a GPU of this type alone, and have not been measured yet."""

    one: Launch
    other: Launch
    gpu_type: str


class ObservedPairs:
    """Knowledge of pairs so far. `kinds`: with the pairs that policies see at first."""

    def __init__(self, kinds: Sequence[KindView], observed: float, seed: int) -> None:
        """ValueError and CompletionError as `profiling.pairs.study.with_estimates`."""
        completed = with_estimates(kinds, observed, seed=seed)
        self.kinds = completed.kinds
        self.first_errors = completed.errors
        self.number_measured = 0
        self._known: dict[PairKey, PairThroughput] = {}
        self._samples: dict[PairKey, int] = {}
        for kind in completed.kinds:
            for pair in kind.pairs:
                key = kind.id, pair.other, pair.gpu_type
                self._known[key] = pair
                self._samples[key] = int(pair.source is Source.MEASURED)
        self._errors_of_run: list[PairError] = []
        self._unmeasured: list[_SideBySide] = []
        self._changed_kinds: set[str] = set()

    @classmethod
    def of(cls, kinds: Sequence[KindView], observed: float, seed: int) -> Self | None:
        """Return the knowledge of pairs; None where all of them are observed."""
        return cls(kinds, observed, seed) if observed < 1.0 else None

    def meet(self, launches: Sequence[Launch], gpu_type: str) -> None:
        """Record that these launches now hold a GPU; two of one GPU each can be measured."""
        # 1. Pairs of these launches are not alone together any more.
        unmeasured = []
        for pair in self._unmeasured:
            if not any(launch is pair.one or launch is pair.other for launch in launches):
                unmeasured.append(pair)
        self._unmeasured = unmeasured

        # 2. Two launches without other GPUs are a new pair.
        gpus = [sum(len(seat.devices) for seat in launch.ranks) for launch in launches]
        if gpus == [1, 1]:
            self._unmeasured.append(_SideBySide(launches[0], launches[1], gpu_type))

    def look(self, now_s: float, kinds: Sequence[str]) -> None:
        """Record speeds of those that worked side by side; `kinds` of jobs, by row."""
        unmeasured = []
        for pair in self._unmeasured:
            one, other, gpu_type = pair
            if _has_worked(one, now_s) and _has_worked(other, now_s):
                key = kinds[one.row], kinds[other.row], gpu_type
                self.learn(key, (one.steps_per_s, other.steps_per_s))
            elif one.goes_on and other.goes_on:
                unmeasured.append(pair)
        self._unmeasured = unmeasured

    def learn(self, pair: PairKey, speed: PairSpeed) -> None:
        """Record that a pair of kinds ran at these speeds on the type; 0: impossible."""
        kind, other, gpu_type = pair
        known = self._known.get(pair)
        samples = self._samples.get(pair, 0)

        # 1. The first measurement shows the errors of an estimate; later ones are smoothed.
        if known is not None and samples == 0:
            self._errors_of_run += _errors(known, kind, speed)
        own, others = _smoothed(known, speed, samples)
        self.number_measured += 1

        # 2. Both kinds of the pair learn of it.
        self._set(kind, PairThroughput(other, gpu_type, own, others, Source.MEASURED), samples + 1)
        if kind != other:
            view = PairThroughput(kind, gpu_type, others, own, Source.MEASURED)
            self._set(other, view, samples + 1)

    def changed(self, kinds: Iterable[KindView]) -> Iterator[KindView]:
        """Yield those of these kinds with new pair knowledge."""
        if not self._changed_kinds:
            return
        for kind in kinds:
            if kind.id in self._changed_kinds:
                pairs = tuple(p for (of_kind, _, _), p in self._known.items() if of_kind == kind.id)
                yield replace(kind, pairs=pairs)
        self._changed_kinds.clear()

    def estimates(self) -> PairEstimates:
        """Return the errors of the estimates."""
        of_run = ErrorSummary.of(self._errors_of_run)
        return PairEstimates(self.first_errors, of_run, self.number_measured)

    def _set(self, kind: str, view: PairThroughput, samples: int) -> None:
        """Record what is known of a pair of this kind, after so many measurements."""
        key = kind, view.other, view.gpu_type
        if self._known.get(key) != view:
            self._changed_kinds.add(kind)
        self._known[key] = view
        self._samples[key] = samples


def _has_worked(launch: Launch, now_s: float) -> bool:
    """Return True if a launch has passed its first step, before it was to stop."""
    until_s = now_s if launch.stop_wanted_s is None else launch.stop_wanted_s
    return min(until_s, launch.end_s) > launch.first_step_s


def _smoothed(known: PairThroughput | None, speed: PairSpeed, samples: int) -> PairSpeed:
    """Return what is known of a pair after another measurement."""
    if known is None:
        return speed
    own = moved(known.steps_per_s, speed[0], samples)
    others = moved(known.other_steps_per_s, speed[1], samples)
    return own, others


def _errors(known: PairThroughput, kind: str, speed: PairSpeed) -> list[PairError]:
    """Return the errors of an estimate, for both kinds of the pair."""
    return [
        PairError(kind, known.other, known.gpu_type, known.steps_per_s, speed[0]),
        PairError(known.other, kind, known.gpu_type, known.other_steps_per_s, speed[1]),
    ]
