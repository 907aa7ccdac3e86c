"""IT power of an assignment while its agent holds its devices.

Own GPUs draw the agent's samples, each holding until the next; without samples the type's idle
watts until the first step, its peak watts from then on. The node's other watts, base_w + (G - g) *
idle_w, are shared in proportion to GPUs held (ANDREAS). A job without GPUs pays its cores' part of
base_w; where no GPU is held, such jobs share all by their cores. A shared GPU's watts are split
evenly among its running jobs (`loadmaster.agent.node.sampling`), without samples by their shares.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from math import inf

from django.db.models import Q

from clusters.models import Node
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
class Holding:
    """Time of an assignment on its node: its GPUs, each with its share; without any, its cores."""

    from_s: float
    to_s: float
    held: Mapping[object, float]
    cores: float = 0.0

    @property
    def gpus(self) -> float:
        """GPUs held, a shared one counted by its share."""
        return sum(self.held.values())


@dataclass(frozen=True, slots=True)
class Interval:
    """Time without changes: GPUs `in_use` of the node, and the assignment's `part` of them.

    `cores`: of all jobs without GPUs there.
    """

    from_s: float
    to_s: float
    part: float
    in_use: int
    cores: float = 0.0


@dataclass(frozen=True, slots=True)
class PowerDraw:
    """Power of an assignment over a holding: its own GPUs', and its part of the node's rest."""

    holding: Holding
    own: list[PowerStep]
    rest: list[PowerStep]


def power_drawn(
    assignment: Assignment, until: datetime, since: datetime | None = None
) -> PowerDraw | None:
    """Watts of the assignment from `since` (None: acceptance) to `until`; None without GPU then."""
    begin = max(filter(None, (assignment.accepted_at, since)), default=None)
    if assignment.accepted_at is None or begin is None or until <= begin:
        return None
    held = _held(assignment)
    of_units = assignment.units * assignment.job.cores
    cores = 0.0 if held else _cores(of_units, assignment.cpu_quota)
    holding = Holding(begin.timestamp(), until.timestamp(), held, cores)
    co_tenants = [n for n in _co_tenants(assignment, until) if n.to_s > holding.from_s]
    intervals = list(_intervals(holding, co_tenants))
    own = _own_power(assignment, holding, intervals, _samples(assignment, begin, until))
    return PowerDraw(holding, own, _rest_power(assignment, holding, intervals))


def _samples(assignment: Assignment, begin: datetime, until: datetime) -> Sequence[UsagePoint]:
    """Return the samples of its GPUs' watts that hold from `begin` to `until`."""
    if not assignment.gpus:
        return ()
    samples = UsagePoint.objects.filter(assignment=assignment, gpu_power_w__isnull=False)
    before = samples.filter(at__lt=begin).order_by("-at", "-id")[:1]
    return [*before, *samples.filter(at__gte=begin, at__lt=until).order_by("at", "id")]


def _own_power(
    assignment: Assignment,
    holding: Holding,
    intervals: Sequence[Interval],
    samples: Sequence[UsagePoint],
) -> list[PowerStep]:
    """Watts of its own GPUs over its holding; the first sample also holds before it."""
    if not samples:
        return list(_modelled_power(assignment, intervals))
    from_s, to_s = holding.from_s, holding.to_s
    changes = (min(max(s.at.timestamp(), from_s), to_s) for s in samples[1:])
    held = zip(pairwise([from_s, *changes, to_s]), samples, strict=True)
    return [
        PowerStep(a, b, s.gpu_power_w or 0.0, s.power_source == MEASURED)
        for (a, b), s in held
        if b > a
    ]


def _modelled_power(assignment: Assignment, intervals: Iterable[Interval]) -> Iterator[PowerStep]:
    gpu, first_step_s = assignment.node.gpu_type, inf
    if gpu is None:
        return
    if assignment.running_at is not None:
        first_step_s = assignment.running_at.timestamp() + (assignment.setup_s or 0.0)
    for interval in intervals:
        at_s = min(max(first_step_s, interval.from_s), interval.to_s)
        idle = PowerStep(interval.from_s, at_s, interval.part * gpu.idle_w)
        busy = PowerStep(at_s, interval.to_s, interval.part * gpu.peak_w)
        yield from (step for step in (idle, busy) if step.to_s > step.from_s)


def _rest_power(
    assignment: Assignment, holding: Holding, intervals: Iterable[Interval]
) -> list[PowerStep]:
    """Watts of its part of the rest of the node, which changes with co-tenants."""
    node = assignment.node
    total, idle_w = (node.devices.count(), node.gpu_type.idle_w) if node.gpu_type else (0, 0.0)
    steps = list[PowerStep]()
    for p in intervals:
        idle = max(0, total - p.in_use) * idle_w
        steps.append(PowerStep(p.from_s, p.to_s, _part_of_rest(node, idle, holding.cores, p)))
    return steps


def _part_of_rest(node: Node, idle_w: float, cores: float, p: Interval) -> float:
    """Watts of the part of a holding with so many cores and no GPU, or with its part of GPUs."""
    if not p.in_use:
        return (node.base_w + idle_w) * cores / p.cores if p.cores else 0.0
    by_cores_w = node.base_w * min(1.0, p.cores / node.cores) if node.cores else 0.0
    if cores:
        return by_cores_w * cores / p.cores
    return (node.base_w - by_cores_w + idle_w) * p.part / p.in_use


def _intervals(holding: Holding, co_tenants: Sequence[Holding]) -> Iterator[Interval]:
    """Intervals of the holding, cut at changes of co-tenants."""
    edges = {e for n in co_tenants for e in (n.from_s, n.to_s) if holding.from_s < e < holding.to_s}
    for a, b in pairwise(sorted({holding.from_s, holding.to_s, *edges})):
        shares, cores = Counter(holding.held), holding.cores
        for other in co_tenants:
            if other.from_s <= a and other.to_s >= b:
                shares.update(other.held)
                cores += other.cores
        part = sum(share / shares[device] for device, share in holding.held.items())
        yield Interval(a, b, part, len(shares), cores)


def _co_tenants(assignment: Assignment, until: datetime) -> Iterator[Holding]:
    here = Assignment.objects.filter(node=assignment.node_id, accepted_at__lt=until)
    meanwhile = Q(ended_at=None) | Q(ended_at__gt=assignment.accepted_at)
    here = here.filter(meanwhile).exclude(pk=assignment.pk)
    by_cores = here.filter(gpus=0).order_by("pk")
    columns = ("accepted_at", "ended_at", "units", "job__cores", "cpu_quota")
    for accepted_at, ended_at, units, cores, quota in by_cores.values_list(*columns):
        to_s = (ended_at or until).timestamp()
        yield Holding(accepted_at.timestamp(), to_s, {}, _cores(units * cores, quota))
    if assignment.node.gpu_type_id is None:
        return
    others = here.filter(slots__share__gt=0).order_by("pk", "slots__pk")
    rows = others.values_list("pk", "accepted_at", "ended_at", "slots__device", "slots__share")
    for (_, accepted_at, ended_at), slots in groupby(rows, key=lambda row: row[:3]):
        held: dict[object, float] = {device: float(share) for *_, device, share in slots}
        yield Holding(accepted_at.timestamp(), (ended_at or until).timestamp(), held)


def _cores(cores: float, quota: float | None) -> float:
    """Cores of a seat; one that asks for none pays as if for a thousandth."""
    return max(0.001, cores if quota is None else quota)


def _held(assignment: Assignment) -> dict[object, float]:
    """Devices with its share of each; without slot rows, whole devices as given."""
    if not assignment.gpus:
        return {}
    slots = assignment.slots.filter(share__gt=0).values_list("device", "share")
    held: dict[object, float] = {device: float(share) for device, share in slots}
    return held or {f"unknown {number}": 1.0 for number in range(assignment.gpus)}
