"""IT power of an assignment while its agent holds its devices.

Its own GPUs draw what the agent's samples say, each holding until the next; without samples the
type's idle watts until the first step, its peak watts from then on. The node's other watts,
base_w + (G - g) * idle_w, are shared by its assignments in proportion to the GPUs they hold
(ANDREAS). A shared GPU's watts are split evenly among those that run at the time
(`loadmaster.agent.node.sampling`), without samples by their shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from math import inf

from clusters.models import GpuType
from jobs.models import Assignment, UsagePoint

MEASURED = "measured"
MODELLED = "modelled"


@dataclass(frozen=True, slots=True)
class PowerStep:
    """Constant IT watts from `from_s` to `to_s`, measured or modelled."""

    from_s: float
    to_s: float
    power_w: float
    measured: bool = False


@dataclass(frozen=True, slots=True)
class Stay:
    """An assignment's time on its node and the GPUs it holds there, each with its share of it."""

    from_s: float
    to_s: float
    held: Mapping[object, float]

    @property
    def gpus(self) -> float:
        """The GPUs it holds, a shared one counted by its share."""
        return sum(self.held.values())


@dataclass(frozen=True, slots=True)
class Piece:
    """A time without changes: GPUs `in_use` of the node, and the assignment's `part` of them."""

    from_s: float
    to_s: float
    part: float
    in_use: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """Power of an assignment over a stay: its own GPUs', and its part of the node's rest."""

    stay: Stay
    own: list[PowerStep]
    rest: list[PowerStep]


def power_drawn(
    assignment: Assignment, until: datetime, since: datetime | None = None
) -> Drawn | None:
    """The assignment's watts from `since` (None: acceptance) to `until`; None without GPU then."""
    begin = max(filter(None, (assignment.accepted_at, since)), default=None)
    if assignment.accepted_at is None or begin is None or until <= begin:
        return None
    stay = Stay(begin.timestamp(), until.timestamp(), _held(assignment))
    pieces = list(
        _pieces(stay, [n for n in _co_tenants(assignment, until) if n.to_s > stay.from_s])
    )
    own = _own_power(assignment, stay, pieces, _samples(assignment, begin, until))
    return Drawn(stay, own, _rest_power(assignment, pieces))


def _samples(assignment: Assignment, since: datetime, until: datetime) -> list[UsagePoint]:
    samples = UsagePoint.objects.filter(assignment=assignment, gpu_power_w__isnull=False)
    before = samples.filter(at__lt=since).order_by("-at", "-id")[:1]
    return [*before, *samples.filter(at__gte=since, at__lt=until).order_by("at", "id")]


def _own_power(
    assignment: Assignment, stay: Stay, pieces: Sequence[Piece], samples: Sequence[UsagePoint]
) -> list[PowerStep]:
    """Watts of its own GPUs over its stay. The first sample also tells of the time before it."""
    if not samples:
        return list(_modelled_power(assignment, pieces))
    times = [
        stay.from_s,
        *(min(max(s.at.timestamp(), stay.from_s), stay.to_s) for s in samples[1:]),
        stay.to_s,
    ]
    held = zip(pairwise(times), samples, strict=True)
    return [
        PowerStep(a, b, s.gpu_power_w or 0.0, s.power_source == MEASURED)
        for (a, b), s in held
        if b > a
    ]


def _modelled_power(assignment: Assignment, pieces: Iterable[Piece]) -> Iterator[PowerStep]:
    gpu, first_step_s = assignment.node.gpu_type, inf
    if assignment.running_at is not None:
        first_step_s = assignment.running_at.timestamp() + (assignment.setup_s or 0.0)
    for piece in pieces:
        at_s = min(max(first_step_s, piece.from_s), piece.to_s)
        idle = PowerStep(piece.from_s, at_s, piece.part * gpu.idle_w)
        yield from (
            s
            for s in (idle, PowerStep(at_s, piece.to_s, piece.part * gpu.peak_w))
            if s.to_s > s.from_s
        )


def _rest_power(assignment: Assignment, pieces: Iterable[Piece]) -> list[PowerStep]:
    """Its part of the node's other watts, which changes with co-tenants."""
    node = assignment.node
    total = node.devices.count()
    return [
        PowerStep(
            p.from_s,
            p.to_s,
            _rest_w(node.base_w, node.gpu_type, total, p.in_use) * p.part / p.in_use,
        )
        for p in pieces
    ]


def _rest_w(base_w: float, gpu: GpuType, total: int, in_use: int) -> float:
    return base_w + max(0, total - in_use) * gpu.idle_w


def _pieces(stay: Stay, co_tenants: Sequence[Stay]) -> Iterator[Piece]:
    """The stay, cut where somebody comes or goes."""
    edges = {e for n in co_tenants for e in (n.from_s, n.to_s) if stay.from_s < e < stay.to_s}
    for a, b in pairwise(sorted({stay.from_s, stay.to_s, *edges})):
        shares = Counter(stay.held)
        for other in co_tenants:
            if other.from_s <= a and other.to_s >= b:
                shares.update(other.held)
        yield Piece(
            a, b, sum(share / shares[device] for device, share in stay.held.items()), len(shares)
        )


def _co_tenants(assignment: Assignment, until: datetime) -> Iterator[Stay]:
    others = Assignment.objects.filter(
        node=assignment.node_id, accepted_at__lt=until, slots__share__gt=0
    )
    others = (
        others.exclude(pk=assignment.pk)
        .exclude(ended_at__lte=assignment.accepted_at)
        .order_by("pk", "slots__pk")
    )
    rows = others.values_list("pk", "accepted_at", "ended_at", "slots__device", "slots__share")
    for (_, accepted_at, ended_at), slots in groupby(rows, key=lambda row: row[:3]):
        held: dict[object, float] = {device: float(share) for *_, device, share in slots}
        yield Stay(accepted_at.timestamp(), (ended_at or until).timestamp(), held)


def _held(assignment: Assignment) -> dict[object, float]:
    """Its devices with its share of each; without slot rows, whole devices as given."""
    held: dict[object, float] = {
        pk: float(share)
        for pk, share in assignment.slots.values_list("device", "share")
        if share > 0
    }
    return held or {f"unknown {number}": 1.0 for number in range(assignment.gpus)}
