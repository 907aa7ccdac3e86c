"""IT power of an assignment while its agent holds its devices.

Own power: the assignment's GPUs draw the watts of the agent's samples, each of which holds until
the next. Without samples they draw the type's idle watts until the first step, and its peak watts
from then on. The samples of a shared GPU split its watts evenly among its running jobs
(`loadmaster.agent.node.sampling`); without samples they are split by the jobs' shares.

Rest: the node's other watts, base_w + (G - g) * idle_w with g of G GPUs held, are split in
proportion to the GPUs held (ANDREAS). A job without GPUs pays its cores' part of base_w. If no GPU
is held, such jobs split all of the watts by their cores.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from math import inf
from operator import itemgetter

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
    """Time of an assignment on its node, in epoch seconds, and the resources it holds.

    `shares`: share of each of its GPUs, by device. `cores`: 0 for an assignment with GPUs.
    """

    from_s: float
    to_s: float
    shares: Mapping[object, float]
    cores: float = 0.0

    @property
    def gpus(self) -> float:
        """GPUs held, a shared one counted by its share."""
        return sum(self.shares.values())


@dataclass(frozen=True, slots=True)
class Interval:
    """Time in which no assignment begins or ends on the node.

    `own_gpus`: GPUs of the assignment, a shared one counted by its part. `gpus_in_use`: GPUs of the
    node that assignments hold. `cores_in_use`: cores of all assignments without GPUs.
    """

    from_s: float
    to_s: float
    own_gpus: float
    gpus_in_use: int
    cores_in_use: float = 0.0


@dataclass(frozen=True, slots=True)
class PowerDraw:
    """Power of an assignment over a holding: of its own GPUs, and its part of the rest."""

    holding: Holding
    own: list[PowerStep]
    rest: list[PowerStep]


def power_drawn(
    assignment: Assignment, until: datetime, since: datetime | None = None
) -> PowerDraw | None:
    """Return the power of an assignment from `since` (None: acceptance) to `until`.

    Return None if it held nothing in that time.
    """
    # 1. Its holding.
    if assignment.accepted_at is None:
        return None
    begin = assignment.accepted_at
    if since is not None:
        begin = max(begin, since)
    if until <= begin:
        return None
    shares = _shares(assignment)
    cores = 0.0
    if not shares:
        cores = _paid_cores(assignment.units * assignment.job.cores, assignment.cpu_quota)
    holding = Holding(begin.timestamp(), until.timestamp(), shares, cores)

    # 2. The intervals between changes of its co-tenants.
    co_tenants = _co_tenants(assignment, until)
    present = [other for other in co_tenants if other.to_s > holding.from_s]
    intervals = list(_intervals(holding, present))

    # 3. The power of its own GPUs, and its part of the rest.
    samples = _samples(assignment, begin, until)
    own = _own_power(assignment, holding, intervals, samples)
    rest = _rest_power(assignment, holding, intervals)
    return PowerDraw(holding, own, rest)


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
    """Return the power of its own GPUs; the first sample also holds before its time."""
    if not samples:
        return list(_modelled_power(assignment, intervals))

    # Each sample holds from its time to that of the next, within the holding.
    edges = [holding.from_s]
    for sample in samples[1:]:
        edges.append(min(max(sample.at.timestamp(), holding.from_s), holding.to_s))
    edges.append(holding.to_s)
    steps = []
    for sample, (from_s, to_s) in zip(samples, pairwise(edges), strict=True):
        if to_s > from_s:
            is_measured = sample.power_source == MEASURED
            steps.append(PowerStep(from_s, to_s, sample.gpu_power_w or 0.0, is_measured))
    return steps


def _modelled_power(assignment: Assignment, intervals: Iterable[Interval]) -> Iterator[PowerStep]:
    """Yield the power of its GPUs by their type: idle until the first step, peak from then on."""
    gpu_type = assignment.node.gpu_type
    if gpu_type is None:
        return
    first_step_s = inf
    if assignment.running_at is not None:
        first_step_s = assignment.running_at.timestamp() + (assignment.setup_s or 0.0)
    for interval in intervals:
        busy_s = min(max(first_step_s, interval.from_s), interval.to_s)
        if busy_s > interval.from_s:
            yield PowerStep(interval.from_s, busy_s, interval.own_gpus * gpu_type.idle_w)
        if interval.to_s > busy_s:
            yield PowerStep(busy_s, interval.to_s, interval.own_gpus * gpu_type.peak_w)


def _rest_power(
    assignment: Assignment, holding: Holding, intervals: Iterable[Interval]
) -> list[PowerStep]:
    """Return its part of the rest of the node's power, which changes with co-tenants."""
    node = assignment.node
    device_count = 0
    idle_w = 0.0
    if node.gpu_type:
        device_count = node.devices.count()
        idle_w = node.gpu_type.idle_w
    steps = []
    for interval in intervals:
        all_idle_w = max(0, device_count - interval.gpus_in_use) * idle_w
        power_w = _part_of_rest(node, all_idle_w, holding.cores, interval)
        steps.append(PowerStep(interval.from_s, interval.to_s, power_w))
    return steps


def _part_of_rest(node: Node, idle_w: float, cores: float, interval: Interval) -> float:
    """Return the part of a holding in the rest of the node's watts: its base, and idle GPUs.

    `idle_w`: watts of all idle GPUs. `cores`: of a holding without GPUs; else 0.
    """
    # 1. Without GPUs in use, jobs split all watts by their cores.
    if not interval.gpus_in_use:
        if not interval.cores_in_use:
            return 0.0
        return (node.base_w + idle_w) * cores / interval.cores_in_use

    # 2. Else jobs without GPUs pay their cores' part of the base watts, and the others the rest.
    split_by_cores_w = 0.0
    if node.cores:
        split_by_cores_w = node.base_w * min(1.0, interval.cores_in_use / node.cores)
    if cores:
        return split_by_cores_w * cores / interval.cores_in_use
    split_by_gpus_w = node.base_w - split_by_cores_w + idle_w
    return split_by_gpus_w * interval.own_gpus / interval.gpus_in_use


def _intervals(holding: Holding, co_tenants: Sequence[Holding]) -> Iterator[Interval]:
    """Yield the intervals of the holding, cut where a co-tenant begins or ends."""
    edges = {holding.from_s, holding.to_s}
    for other in co_tenants:
        for edge_s in (other.from_s, other.to_s):
            if holding.from_s < edge_s < holding.to_s:
                edges.add(edge_s)
    for from_s, to_s in pairwise(sorted(edges)):
        # Jobs on a GPU split it in proportion to their shares, whose sum may differ from 1.
        shares = Counter(holding.shares)
        cores = holding.cores
        for other in co_tenants:
            if other.from_s <= from_s and other.to_s >= to_s:
                shares.update(other.shares)
                cores += other.cores
        own_gpus = sum(share / shares[device] for device, share in holding.shares.items())
        yield Interval(from_s, to_s, own_gpus, len(shares), cores)


def _co_tenants(assignment: Assignment, until: datetime) -> Iterator[Holding]:
    """Yield the holdings of the node's other assignments from its acceptance to `until`."""
    others = Assignment.objects.filter(node=assignment.node_id, accepted_at__lt=until)
    others = others.filter(Q(ended_at=None) | Q(ended_at__gt=assignment.accepted_at))
    others = others.exclude(pk=assignment.pk)

    # 1. Assignments without GPUs.
    by_cores = others.filter(gpus=0).order_by("pk")
    columns = ("accepted_at", "ended_at", "units", "job__cores", "cpu_quota")
    for accepted_at, ended_at, units, cores, quota in by_cores.values_list(*columns):
        to_s = (ended_at or until).timestamp()
        paid_cores = _paid_cores(units * cores, quota)
        yield Holding(accepted_at.timestamp(), to_s, {}, paid_cores)

    # 2. Assignments with GPUs: one row for each of their slots.
    if assignment.node.gpu_type_id is None:
        return
    by_gpus = others.filter(slots__share__gt=0).order_by("pk", "slots__pk")
    columns = ("pk", "accepted_at", "ended_at", "slots__device", "slots__share")
    assignment_of = itemgetter(0, 1, 2)
    for (_, accepted_at, ended_at), slots in groupby(by_gpus.values_list(*columns), assignment_of):
        shares: dict[object, float] = {}
        for *_, device, share in slots:
            shares[device] = float(share)
        to_s = (ended_at or until).timestamp()
        yield Holding(accepted_at.timestamp(), to_s, shares)


def _paid_cores(cores: float, quota: float | None) -> float:
    """Return the cores that an assignment pays for: its quota, else its own; at least 0.001."""
    return max(0.001, cores if quota is None else quota)


def _shares(assignment: Assignment) -> dict[object, float]:
    """Return its share of each of its devices; without rows of slots, whole unknown devices."""
    if not assignment.gpus:
        return {}
    slots = assignment.slots.filter(share__gt=0).values_list("device", "share")
    shares: dict[object, float] = {device: float(share) for device, share in slots}
    if not shares:
        shares = {f"unknown {number}": 1.0 for number in range(assignment.gpus)}
    return shares
