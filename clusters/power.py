"""What an assignment draws: its IT power over the time its devices are held by the agent.

At a moment it is

- its own GPUs: as measured or modelled by the agent's samples, each holding until the next one; without any sample the type's idle
  watts until the first step (`setup_s` after the start of the process) and the type's peak watts from then on;
- and its part of what the node takes beside the GPUs in use, base_w + (G - g) * idle_w: shared by the assignments on the node in
  proportion to the GPUs they hold (ANDREAS: energy is accounted per node at its GPUs in use and shared by its jobs).

So what a node's assignments draw adds up to the node's power while it works; a node without work is closed and nobody's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from django.db.models import Sum

from clusters.models import Assignment, GpuType, UsagePoint

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
    """An assignment's time on its node and the GPUs it holds there (a shared one counts by its share)."""

    from_s: float
    to_s: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Drawn:
    """What an assignment drew over a stay: its own GPUs' watts, and its part of the rest of the node's."""

    stay: Stay
    own: list[PowerStep]
    rest: list[PowerStep]


def power_drawn(assignment: Assignment, until: datetime, since: datetime | None = None) -> Drawn | None:
    """The assignment's watts from `since` (None: from its acceptance) to `until`; None where it held no GPU then."""
    begin = max(filter(None, (assignment.accepted_at, since)), default=None)
    if assignment.accepted_at is None or begin is None or until <= begin:
        return None
    stay = Stay(begin.timestamp(), until.timestamp(), _gpus(assignment))
    neighbours = [n for n in _neighbours(assignment, until) if n.to_s > stay.from_s]
    own = _own_power(assignment, stay, _samples(assignment, begin, until))
    return Drawn(stay, own, _rest_power(assignment, stay, neighbours))


def _samples(assignment: Assignment, since: datetime, until: datetime) -> list[UsagePoint]:
    """The samples with watts of the time, led by the newest one before it, which still holds as it begins."""
    samples = UsagePoint.objects.filter(assignment=assignment, gpu_power_w__isnull=False)
    before = samples.filter(at__lt=since).order_by("-at", "-id")[:1]
    return [*before, *samples.filter(at__gte=since, at__lt=until).order_by("at", "id")]


def _own_power(assignment: Assignment, stay: Stay, samples: Sequence[UsagePoint]) -> list[PowerStep]:
    """Watts of its own GPUs over its stay. The first sample also tells of the time before it."""
    if not samples:
        return _modelled_power(assignment, stay)
    times = [stay.from_s, *(min(max(s.at.timestamp(), stay.from_s), stay.to_s) for s in samples[1:]), stay.to_s]
    held = zip(pairwise(times), samples, strict=True)
    return [PowerStep(a, b, s.gpu_power_w or 0.0, s.power_source == MEASURED) for (a, b), s in held if b > a]


def _modelled_power(assignment: Assignment, stay: Stay) -> list[PowerStep]:
    gpu = assignment.node.gpu_type
    if assignment.running_at is None:
        return [PowerStep(stay.from_s, stay.to_s, stay.gpus * gpu.idle_w)]
    first_step_s = assignment.running_at.timestamp() + (assignment.setup_s or 0.0)
    at_s = min(max(first_step_s, stay.from_s), stay.to_s)
    idle = PowerStep(stay.from_s, at_s, stay.gpus * gpu.idle_w)
    return [idle, PowerStep(at_s, stay.to_s, stay.gpus * gpu.peak_w)]


def _rest_power(assignment: Assignment, stay: Stay, neighbours: Sequence[Stay]) -> list[PowerStep]:
    """Its part of the node's watts beside the GPUs in use, which changes as neighbours come and go."""
    node = assignment.node
    total = node.devices.count()
    return [
        PowerStep(a, b, _rest_w(node.base_w, node.gpu_type, total, in_use) * stay.gpus / in_use)
        for a, b, in_use in _in_use(stay, neighbours)
    ]


def _rest_w(base_w: float, gpu: GpuType, total: int, in_use: float) -> float:
    return base_w + max(0.0, total - in_use) * gpu.idle_w


def _in_use(stay: Stay, neighbours: Sequence[Stay]) -> Iterator[tuple[float, float, float]]:
    """(from, to, GPUs in use on the node) over the stay."""
    edges = {e for n in neighbours for e in (n.from_s, n.to_s) if stay.from_s < e < stay.to_s}
    for a, b in pairwise(sorted({stay.from_s, stay.to_s, *edges})):
        yield a, b, stay.gpus + sum(n.gpus for n in neighbours if n.from_s <= a and n.to_s >= b)


def _neighbours(assignment: Assignment, until: datetime) -> Iterator[Stay]:
    """The stays of the node's other assignments that began before `until`."""
    others = Assignment.objects.filter(node=assignment.node_id, accepted_at__lt=until).exclude(pk=assignment.pk)
    others = others.exclude(ended_at__lte=assignment.accepted_at)
    for accepted_at, ended_at, held in others.annotate(held=Sum("slots__share")).values_list("accepted_at", "ended_at", "held"):
        if accepted_at is not None and held:
            yield Stay(accepted_at.timestamp(), (ended_at or until).timestamp(), float(held))


def _gpus(assignment: Assignment) -> float:
    held = assignment.slots.aggregate(held=Sum("share"))["held"]
    return float(held) if held else float(assignment.gpus)
