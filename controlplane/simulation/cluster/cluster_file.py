"""Cluster in YAML or JSON, made a `Scenario`; docs/workloads.md has a commented example.

Times count in seconds from the start of the simulation. Errors name the field: "nodes[1].gpus: must
be >= 1, not 0".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Annotated, Any

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
)  # fmt: skip
NODE_FIELDS = ("gpu_type", "cores", "memory_gb", "resources", "labels", "role", "rack", "link_gbps")
"""Fields copied unchanged."""
_FORM = Form(ClusterSpec, "cluster")


def scenario_of(spec: Mapping[str, Any]) -> Scenario:
    """Build the scenario of a cluster file. ClusterFileError names the field and the known ones."""
    try:
        cluster = _FORM.read(dict(spec))
        check_follow("energy.steps", cluster.energy.steps)
    except FormError as error:
        raise ClusterFileError(str(error)) from None
    names = [team.name for team in cluster.teams]
    if (i := _repeated(names)) is not None:
        raise ClusterFileError(f"teams[{i}].name: {names[i]!r} is there twice")
    return Scenario(
        nodes=_nodes(cluster),
        energy=_energy(cluster),
        cluster=cluster.name,
        power_caps=_power_caps(cluster),
        **{name: getattr(cluster, name) for name in SCENARIO_FIELDS},
    )


def _repeated(names: Sequence[str]) -> int | None:
    """Position of the first repeated name; None if there is none."""
    first = {name: i for i, name in reversed(list(enumerate(names)))}
    return next((i for i, name in enumerate(names) if first[name] < i), None)


def _nodes(cluster: ClusterSpec) -> tuple[NodeView, ...]:
    memory_gb = {g.name: g.memory_gb for g in cluster.gpu_types}
    nodes = []
    for i, spec in enumerate(cluster.nodes):
        _check_type(spec, f"nodes[{i}]")
        power_w = _power_w(spec, f"nodes[{i}]")
        numbers = range(1, spec.count + 1)
        names = [f"{spec.name}-{n}" for n in numbers] if spec.count > 1 else [spec.name]
        nodes += [_node(name, spec, power_w, memory_gb) for name in names]
    if (found := _repeated([node.id for node in nodes])) is not None:
        raise ClusterFileError(f"nodes: two nodes are called {nodes[found].id!r}")
    if not nodes:
        raise ClusterFileError("nodes: a cluster has at least one node")
    return tuple(nodes)


def _check_type(spec: NodeSpec, path: str) -> None:
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
    memory = memory_gb.get(spec.gpu_type, 0.0) if spec.gpu_memory_gb is None else spec.gpu_memory_gb
    return NodeView(
        id=name,
        name=name,
        power_w=power_w,
        devices=tuple(DeviceView(f"gpu{i}", memory, spec.slots) for i in range(spec.gpus)),
        **{field: getattr(spec, field) for field in NODE_FIELDS},
    )


def _power_w(spec: NodeSpec, path: str) -> tuple[float, ...]:
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
    energy = cluster.energy
    if energy.steps:
        return energy.steps
    if not energy.by_hour:
        return (
            PriceInterval(0.0, inf, energy.price_per_kwh, energy.pue, energy.emissions_g_per_kwh),
        )
    steps = []
    for from_s, to_s, hour in _pieces(cluster, energy.by_hour):
        bands = [b for b in energy.by_hour if _covers(b, hour)]
        prices = [b.price_per_kwh for b in bands if b.price_per_kwh is not None]
        grams = [b.emissions_g_per_kwh for b in bands if b.emissions_g_per_kwh is not None]
        price = prices[0] if prices else energy.price_per_kwh
        emissions = grams[0] if grams else energy.emissions_g_per_kwh
        steps.append(PriceInterval(from_s, to_s, price, energy.pue, emissions))
    return tuple(steps)


def _power_caps(cluster: ClusterSpec) -> tuple[PowerCapStep, ...]:
    found = []
    for from_s, to_s, hour in _pieces(cluster, cluster.power_caps):
        caps = [c.power_cap_w for c in cluster.power_caps if _covers(c, hour)]
        found += [PowerCapStep(from_s, to_s, cap) for cap in caps[:1]]
    return tuple(found)


def _pieces(
    cluster: ClusterSpec, bands: Sequence[HourlyPrice | HourlyCap]
) -> Iterator[tuple[float, float, float]]:
    """Times without a change of band: (from_s, to_s, hour of the day)."""
    edges = sorted({0.0, DAY_H, *(b.from_hour for b in bands), *(b.to_hour for b in bands)})
    for day in range(cluster.days + 1 if bands else 0):
        for from_hour, to_hour in pairwise(edges):
            from_s = (day * DAY_H + from_hour - cluster.start_hour) * HOUR_S
            to_s = (day * DAY_H + to_hour - cluster.start_hour) * HOUR_S
            if to_s > 0:
                yield max(0.0, from_s), to_s, (from_hour + to_hour) / 2


def _covers(band: HourlyPrice | HourlyCap, hour: float) -> bool:
    if band.from_hour < band.to_hour:
        return band.from_hour <= hour < band.to_hour
    return hour >= band.from_hour or hour < band.to_hour
