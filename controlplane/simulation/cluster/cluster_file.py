"""Cluster in YAML or JSON, made a `Scenario`; docs/workloads.md has a commented example.

Times count in seconds from the start of the simulation. Errors name the field: "nodes[1].gpus: must
be >= 1, not 0".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from clusters.energy import HOUR_S, power_curve
from controlplane.simulation.cluster.scenario import Scenario
from foundation.forms import (
    Amounts,
    AtLeast0,
    Count1,
    Form,
    FormError,
    UnboundedAtLeast0,
)
from policies.contract.snapshot import (
    DeviceView,
    GpuTypeView,
    KindView,
    NodeRole,
    NodeView,
    PowerCapStep,
    PriceInterval,
    TeamView,
)
from policies.contract.snapshot_json import check_follow
from policies.contract.views import Emissions, Price, Pue

DAY_H = 24.0
MEASURED_W: Mapping[str, tuple[float, float]] = {"V100": (360.0, 170.0), "T4": (330.0, 70.0)}
"""Watts of a node of these types and of each GPU in use, measured by ANDREAS' authors."""

Amount = Annotated[float, Field(ge=0, le=1e9)]
Watts = Amount
Hour = Annotated[float, Field(ge=0, le=DAY_H)]


class ClusterFileError(ValueError):
    """Cluster that cannot be simulated; the message names the field."""


@dataclass(frozen=True, slots=True)
class PowerModel:
    """P(g) = base_w + (G - g) * idle_w + g * peak_w with g of the node's G GPUs in use."""

    base_w: Watts
    peak_w: Watts
    idle_w: Watts = 0.0


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """`count` equal nodes: named `name` if there is one, else name-1, name-2, ...

    `power_w`: watts with 0, 1, ... GPUs in use; else `power`; else as measured of V100 and T4
    nodes. A closed node costs nothing. `cores` and `memory_gb` default to unlimited. A node without
    GPUs (`gpus` 0) has no `gpu_type`, but a number of cores.
    """

    name: str
    gpus: Annotated[int, Field(ge=0, le=1024)]
    gpu_type: str = ""
    count: Annotated[int, Field(ge=1, le=100_000)] = 1
    power_w: tuple[Watts, ...] = ()
    power: PowerModel | None = None
    gpu_memory_gb: AtLeast0 | None = None
    slots: Count1 = 1
    cores: UnboundedAtLeast0 = inf
    memory_gb: UnboundedAtLeast0 = inf
    resources: Amounts = ()
    labels: tuple[str, ...] = ()
    role: NodeRole = NodeRole.PRODUCTION
    rack: str = ""
    link_gbps: AtLeast0 = 0.0


@dataclass(frozen=True, slots=True)
class HourlyPrice:
    """Price from `from_hour` to `to_hour` daily (over midnight if smaller); all day if absent."""

    from_hour: Hour
    to_hour: Hour
    price_per_kwh: Price | None = None
    emissions_g_per_kwh: Emissions | None = None


@dataclass(frozen=True, slots=True)
class HourlyCap:
    """Power cap from `from_hour` to `to_hour` of every day."""

    from_hour: Hour
    to_hour: Hour
    power_cap_w: AtLeast0


@dataclass(frozen=True, slots=True)
class EnergySpec:
    """Prices: all day, `by_hour` (the first band covering an hour holds), or `steps` alone."""

    price_per_kwh: Price = 0.0
    pue: Pue = 1.0
    emissions_g_per_kwh: Emissions = 0.0
    by_hour: tuple[HourlyPrice, ...] = ()
    steps: tuple[PriceInterval, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Cluster file. `start_hour`: hour of the day at the start of the simulation.

    `days`: days that `by_hour` and `power_caps` reach; afterwards the last price holds and no cap.
    `teams`: those that jobs name (default weight 1). `gather_s`, `value_of_time`, `min_run_factor`,
    `round_jobs`: see `Scenario`.
    """

    nodes: tuple[NodeSpec, ...]
    name: str = "simulated"
    currency: str = "EUR"
    round_s: Annotated[float, Field(ge=1, le=1e9)] = 300.0
    horizon_s: Amount = 86_400.0
    gpu_types: tuple[GpuTypeView, ...] = ()
    kinds: tuple[KindView, ...] = ()
    energy: EnergySpec = EnergySpec()
    emissions_cost_per_kg: Amount = 0.0
    power_cap_w: Annotated[float, Field(ge=0, le=1e12)] | None = None
    power_caps: tuple[HourlyCap, ...] = ()
    start_hour: Hour = 0.0
    days: Annotated[int, Field(ge=1, le=3660)] = 31
    gather_s: Amount = 0.0
    value_of_time: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    min_run_factor: Annotated[float, Field(ge=0, le=1000)] = 0.0
    round_jobs: Annotated[int, Field(ge=4)] | None = None
    teams: tuple[TeamView, ...] = ()


SCENARIO_FIELDS = (
    "currency", "round_s", "horizon_s", "power_cap_w", "emissions_cost_per_kg", "gather_s",
    "round_jobs", "teams", "kinds", "gpu_types", "value_of_time", "min_run_factor",
)  # fmt: skip  # a long list of names
"""Fields that a scenario has unchanged."""

NODE_FIELDS = ("gpu_type", "cores", "memory_gb", "resources", "labels", "role", "rack", "link_gbps")
"""Fields that each node of a `NodeSpec` has unchanged."""

_FORM = Form(ClusterSpec, "cluster")


def scenario_of(spec: Mapping[str, Any]) -> Scenario:
    """Build the scenario of a cluster file. ClusterFileError names the field and the known ones."""
    try:
        cluster = _FORM.read(dict(spec))
        check_follow("energy.steps", cluster.energy.steps)
    except FormError as error:
        raise ClusterFileError(str(error)) from None
    names = [team.name for team in cluster.teams]
    repeated = _first_repeated(names)
    if repeated is not None:
        raise ClusterFileError(f"teams[{repeated}].name: {names[repeated]!r} is there twice")
    return Scenario(
        nodes=_nodes(cluster),
        energy=_energy(cluster),
        cluster=cluster.name,
        power_caps=_power_caps(cluster),
        **{name: getattr(cluster, name) for name in SCENARIO_FIELDS},
    )


def _first_repeated(names: Sequence[str]) -> int | None:
    """Return the position of the first name that has occurred before; None if there is none."""
    seen: set[str] = set()
    for position, name in enumerate(names):
        if name in seen:
            return position
        seen.add(name)
    return None


def _nodes(cluster: ClusterSpec) -> tuple[NodeView, ...]:
    """Return all nodes of the file. Raises ClusterFileError."""
    memory_gb = {gpu_type.name: gpu_type.memory_gb for gpu_type in cluster.gpu_types}
    nodes = []
    for i, spec in enumerate(cluster.nodes):
        _check_type(spec, f"nodes[{i}]")
        power_w = _power_w(spec, f"nodes[{i}]")
        names = [spec.name]
        if spec.count > 1:
            names = [f"{spec.name}-{number}" for number in range(1, spec.count + 1)]
        nodes += [_node(name, spec, power_w, memory_gb) for name in names]
    repeated = _first_repeated([node.id for node in nodes])
    if repeated is not None:
        raise ClusterFileError(f"nodes: two nodes are called {nodes[repeated].id!r}")
    if not nodes:
        raise ClusterFileError("nodes: a cluster has at least one node")
    return tuple(nodes)


def _check_type(spec: NodeSpec, path: str) -> None:
    """Raise ClusterFileError unless the node has a GPU type exactly if it has GPUs, and cores."""
    if spec.gpus and not spec.gpu_type:
        raise ClusterFileError(f"{path}.gpu_type: is missing; name the type of its GPUs")
    if not spec.gpus and spec.gpu_type:
        raise ClusterFileError(f"{path}.gpu_type: leave it out, the node has no GPUs")
    if not spec.cores:
        remedy = "leave it out" if spec.gpus else "give its number of cores"
        raise ClusterFileError(f"{path}.cores: must be above 0, as every job needs some; {remedy}")
    if not spec.gpus and spec.cores == inf:
        raise ClusterFileError(f"{path}.cores: a node without GPUs needs a number of cores")


def _node(
    name: str, spec: NodeSpec, power_w: tuple[float, ...], memory_gb: Mapping[str, float]
) -> NodeView:
    """Return one node; `memory_gb`: of a GPU by type, where the node does not say it."""
    gpu_memory_gb = spec.gpu_memory_gb
    if gpu_memory_gb is None:
        gpu_memory_gb = memory_gb.get(spec.gpu_type, 0.0)
    devices = [DeviceView(f"gpu{i}", gpu_memory_gb, spec.slots) for i in range(spec.gpus)]
    return NodeView(
        id=name,
        name=name,
        power_w=power_w,
        devices=tuple(devices),
        changes_quotas=True,
        **{field: getattr(spec, field) for field in NODE_FIELDS},
    )


def _power_w(spec: NodeSpec, path: str) -> tuple[float, ...]:
    """Return a node's watts with 0, 1, ... GPUs in use. Raises ClusterFileError."""
    if spec.power_w:
        if len(spec.power_w) != spec.gpus + 1:
            wanted = f"{spec.gpus + 1} numbers (0 to {spec.gpus} GPUs in use)"
            raise ClusterFileError(f"{path}.power_w: must have {wanted}, not {len(spec.power_w)}")
        return spec.power_w
    if spec.power is not None:
        return power_curve(spec.power.base_w, spec.power.idle_w, spec.power.peak_w, spec.gpus)
    if spec.gpu_type not in MEASURED_W:
        of_type = spec.gpu_type or "no GPUs"
        raise ClusterFileError(
            f"{path}.power_w: give the watts of a node with {of_type}, such as power: {{base_w:"
            f" 360, peak_w: 170}}; only {', '.join(MEASURED_W)} are known"
        )
    base_w, peak_w = MEASURED_W[spec.gpu_type]
    return power_curve(base_w, 0.0, peak_w, spec.gpus)


def _energy(cluster: ClusterSpec) -> tuple[PriceInterval, ...]:
    """Return the prices over time: as given in steps, by hour, or one for ever."""
    energy = cluster.energy
    if energy.steps:
        return energy.steps
    if not energy.by_hour:
        return (
            PriceInterval(0.0, inf, energy.price_per_kwh, energy.pue, energy.emissions_g_per_kwh),
        )
    steps = []
    for interval in _unchanging_intervals(cluster, energy.by_hour):
        # The first band that covers the hour and has a price holds; the same for emissions.
        price = energy.price_per_kwh
        emissions = energy.emissions_g_per_kwh
        for band in reversed(energy.by_hour):
            if _covers(band, interval.hour):
                if band.price_per_kwh is not None:
                    price = band.price_per_kwh
                if band.emissions_g_per_kwh is not None:
                    emissions = band.emissions_g_per_kwh
        steps.append(PriceInterval(interval.from_s, interval.to_s, price, energy.pue, emissions))
    return tuple(steps)


def _power_caps(cluster: ClusterSpec) -> tuple[PowerCapStep, ...]:
    """Return the power caps over time: of each interval the first cap that covers it."""
    steps = []
    for interval in _unchanging_intervals(cluster, cluster.power_caps):
        for cap in cluster.power_caps:
            if _covers(cap, interval.hour):
                steps.append(PowerCapStep(interval.from_s, interval.to_s, cap.power_cap_w))
                break
    return tuple(steps)


class _Interval(NamedTuple):
    """Time in seconds of the simulation in which no band begins or ends."""

    from_s: float
    to_s: float
    hour: float
    """Hour of the day at its middle, which the same bands cover as all of it."""


def _unchanging_intervals(
    cluster: ClusterSpec, bands: Sequence[HourlyPrice | HourlyCap]
) -> Iterator[_Interval]:
    """Yield the intervals between begins and ends of bands, for the cluster's `days`."""
    if not bands:
        return
    hours = {0.0, DAY_H}
    for band in bands:
        hours.update((band.from_hour, band.to_hour))
    # One day more: the first begins at `start_hour`.
    for day in range(cluster.days + 1):
        for from_hour, to_hour in pairwise(sorted(hours)):
            from_s = (day * DAY_H + from_hour - cluster.start_hour) * HOUR_S
            to_s = (day * DAY_H + to_hour - cluster.start_hour) * HOUR_S
            if to_s > 0:
                yield _Interval(max(0.0, from_s), to_s, (from_hour + to_hour) / 2)


def _covers(band: HourlyPrice | HourlyCap, hour: float) -> bool:
    """Return True if a band covers this hour of the day."""
    if band.from_hour < band.to_hour:
        return band.from_hour <= hour < band.to_hour
    return hour >= band.from_hour or hour < band.to_hour  # over midnight, or all day
