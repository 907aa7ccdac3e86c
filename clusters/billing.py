"""What an assignment's energy was and cost.

The bill covers the time its devices were held by the agent: from the acceptance to the end. Its IT power at a moment is

- its own GPUs: as measured or modelled by the agent's samples, each holding until the next one; without any sample the type's idle
  watts until the first step (`setup_s` after the start of the process) and the type's peak watts from then on;
- and its part of what the node takes beside the GPUs in use, base_w + (G - g) * idle_w: shared by the assignments on the node in
  proportion to the GPUs they hold (ANDREAS: energy is accounted per node at its GPUs in use and shared by its jobs).

So the bills of a node's assignments add up to the node's energy while it works; a node without work is closed and nobody's.
Watts become money over the price steps of the cluster's tariff and PUE.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import pairwise

from django.db.models import Sum

from clusters.energy import energy_cost, energy_kwh
from clusters.models import Assignment, GpuType, UsagePoint
from clusters.tariffs import price_steps
from policies.snapshot import EnergyStep

MEASURED = "measured"
MODELLED = "modelled"
_PLACES = Decimal("0.00000001")


@dataclass(frozen=True, slots=True)
class Bill:
    """IT energy, its cost in the cluster's currency, and whether every watt of the GPUs was measured."""

    energy_kwh: float
    energy_cost: Decimal
    power_source: str


@dataclass(frozen=True, slots=True)
class PowerStep:
    """Constant watts from `from_s` to `to_s`."""

    from_s: float
    to_s: float
    power_w: float


@dataclass(frozen=True, slots=True)
class Stay:
    """An assignment's time on its node and the GPUs it holds there (a shared one counts by its share)."""

    from_s: float
    to_s: float
    gpus: float


def bill(assignment: Assignment) -> Bill:
    """The bill of an assignment that has ended, which is also written to its row. Call it in the transaction of its end."""
    if assignment.ended_at is None:
        raise ValueError(f"assignment {assignment.pk} has not ended: use bill_until for what it has cost so far")
    result = bill_until(assignment, assignment.ended_at)
    values = {"energy_kwh": result.energy_kwh, "energy_cost": result.energy_cost, "power_source": result.power_source}
    Assignment.objects.filter(pk=assignment.pk).update(**values)
    for name, value in values.items():
        setattr(assignment, name, value)
    return result


def bill_until(assignment: Assignment, until: datetime) -> Bill:
    """What it has taken and cost from its acceptance until then (for a running one: so far)."""
    if assignment.accepted_at is None or until <= assignment.accepted_at:
        return Bill(0.0, Decimal(0), MODELLED)
    stay = Stay(assignment.accepted_at.timestamp(), until.timestamp(), _gpus(assignment))
    samples = list(UsagePoint.objects.filter(assignment=assignment, gpu_power_w__isnull=False, at__lt=until).order_by("at", "id"))
    own = _own_power(assignment, stay, samples)
    neighbours = [n for n in _neighbours(assignment, until) if n.to_s > stay.from_s]
    rest = _rest_power(assignment, stay, neighbours)
    steps = price_steps(assignment.node.cluster, stay.from_s, stay.to_s)
    measured = bool(samples) and all(s.power_source == MEASURED for s in samples)
    return _bill([*own, *rest], steps, MEASURED if measured else MODELLED)


def _bill(powers: Sequence[PowerStep], steps: Sequence[EnergyStep], source: str) -> Bill:
    kwh = sum(energy_kwh(p.power_w, p.from_s, p.to_s) for p in powers)
    cost = sum(energy_cost(p.power_w, p.from_s, p.to_s, steps) for p in powers)
    return Bill(kwh, Decimal(repr(cost)).quantize(_PLACES), source)


def _own_power(assignment: Assignment, stay: Stay, samples: Sequence[UsagePoint]) -> list[PowerStep]:
    """Watts of its own GPUs over its stay. The first sample also tells of the time before it."""
    if not samples:
        return _modelled_power(assignment, stay)
    times = [stay.from_s, *(min(max(s.at.timestamp(), stay.from_s), stay.to_s) for s in samples[1:]), stay.to_s]
    return [PowerStep(a, b, s.gpu_power_w or 0.0) for (a, b), s in zip(pairwise(times), samples, strict=True) if b > a]


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
