"""Feasibility: jobs that no node of a cluster could ever serve are refused."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial

from django.contrib.auth.models import AnonymousUser, User
from django.core.cache import caches
from django.db.models import Count, F, OuterRef, Subquery
from django.db.models.functions import Coalesce

from clusters.models import Cluster, Device, GpuType, Node
from clusters.models.nodes import Role
from jobs.kinds import KindKey, kinds_for
from jobs.models import Kind, Team
from jobs.roles import teams_to_submit_to
from loadmaster.features import GANG
from loadmaster.slurm.options.constraints import ALTERNATIVE, satisfied
from policies.contract.plan import available, demanded
from policies.placement.layout import Free, Request


@dataclass(frozen=True, slots=True)
class Demand:
    """Needs of a job: GPUs of all its equal units; cores, memory and resources of each unit.

    `units_per_node`: the most units on a node, 0: any number. `nodes`: 0: any number. A training
    job (not `batch`) that no node can hold is a gang: a unit on each of its nodes. `may_mix`: its
    GPUs may be of several types.
    """

    gpus_min: int
    gpus_max: int
    allowed_types: tuple[str, ...]
    cores: float
    memory_gb: float
    labels: tuple[str, ...]
    runtime: str = "process"
    resources: tuple[tuple[str, float], ...] = ()
    units: int = 1
    units_per_node: int = 0
    nodes: int = 0
    batch: bool = True
    may_mix: bool = False

    @property
    def request(self) -> Request:
        """Request to the planner for its units on nodes; of other resources nothing is asked.

        A node may still offer those later.
        """
        return Request(
            gpus=self.gpus_min // self.units,
            amounts=(demanded(self.cores), demanded(self.memory_gb)),
            units=self.units,
            nodes=self.nodes,
            most=self.units_per_node,
        )

    @property
    def gang_request(self) -> Request:
        """Request for a gang's GPUs one by one; its amounts are needed once on each node."""
        amounts = (demanded(self.cores), demanded(self.memory_gb))
        return Request(gpus=1, per_node=amounts, units=self.gpus_min)

    @property
    def of_unit(self) -> str:
        """Words after an amount, if it is that of one of several units."""
        return " for a unit" if self.units > 1 else ""


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """Capacity of one of `count` equal empty nodes.

    `features`: the runtimes and others that its agent has. `broken_gpus`: unhealthy ones of `gpus`.
    """

    gpu_type: str
    gpus: int
    cores: float
    memory_gb: float
    labels: frozenset[str]
    features: frozenset[str]
    resources: tuple[tuple[str, float], ...] = ()
    count: int = 1
    broken_gpus: int = 0

    @property
    def free(self) -> Free:
        """Free capacity as the planner reckons it."""
        return self.gpus, available(self.cores), available(self.memory_gb)


@dataclass(frozen=True, slots=True)
class GpuFault:
    """Unhealthy GPU of a node; without a type a node whose GPUs cannot be reached."""

    node: str
    gpu_type: str
    trouble: str

    def __str__(self) -> str:
        if not self.gpu_type:
            return f"GPUs of {self.node} may be missing: {self.trouble}"
        return f"{self.gpu_type} on {self.node} is unhealthy: {self.trouble or 'it takes no work'}"


class Infeasible(Exception):
    """Job that no node could ever serve; `field` names the first unmet need."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


_REMEDIES = {
    "docker": "leave out the image, or add a node with the docker runtime",
    "process": ("give an image, or add a node with the process runtime"),
}


FAULTS_NAMED = 3
"""Faults of GPUs that a message names."""


def check_feasible(
    cluster: str,
    demand: Demand,
    nodes: Sequence[NodeCapacity],
    faults: Callable[[], Sequence[GpuFault]] = tuple,
) -> list[str]:
    """Return warnings of missing capacity; raise Infeasible if no present node would do.

    `faults` are read only if GPUs are missing.
    """
    if not nodes:
        return [f"cluster: {cluster} has no node that runs jobs yet; the job waits until one joins"]

    # 1. Runtime and GPU type. A node that has not told its features may have any runtime.
    running = [n for n in nodes if not n.features or demand.runtime in n.features]
    if not running:
        missing = f"no node of {cluster} offers the runtime {demand.runtime}"
        raise Infeasible("runtime", f"{missing}; {_REMEDIES[demand.runtime]}")
    typed = [n for n in running if not demand.allowed_types or n.gpu_type in demand.allowed_types]
    if not typed:
        missing = f"no node of {cluster} has {' or '.join(demand.allowed_types)}"
        here = ", ".join(sorted({n.gpu_type or "no GPUs" for n in running}))
        words = _words_of([fault for fault in faults() if not fault.gpu_type])
        raise Infeasible("allowed_types", f"{missing}; its nodes have {here}{words}")

    # 2. Cores and memory, each by itself and then together.
    for field, unit in (("cores", "cores"), ("memory_gb", "GB")):
        wanted = getattr(demand, field)
        most = max(getattr(n, field) for n in typed)
        if not _fits(wanted, most):
            missing = f"no node of {cluster} that may run it has {wanted:g} {unit}{demand.of_unit}"
            raise Infeasible(field, f"{missing}; the largest has {most:g}")
    fitting = [
        n for n in typed if _fits(demand.cores, n.cores) and _fits(demand.memory_gb, n.memory_gb)
    ]
    if not fitting:
        both = f"{demand.cores:g} cores and {demand.memory_gb:g} GB at once"
        raise Infeasible("memory_gb", f"no node of {cluster} has {both}; ask for less")

    # 3. GPUs of a unit, and all units together.
    if demand.gpus_min // demand.units > max(node.gpus for node in fitting):
        warnings = _check_gang(cluster, demand, fitting, faults)
    else:
        _check_units(cluster, demand, fitting)
        warnings = []
    warnings += _warnings(demand, fitting)
    return warnings + _fault_warnings(demand, fitting, faults)


def _fault_warnings(
    demand: Demand, nodes: Sequence[NodeCapacity], faults: Callable[[], Sequence[GpuFault]]
) -> list[str]:
    """Return a warning if the healthy GPUs are too few, so that the job waits for others."""
    if not demand.gpus_min or not any(node.broken_gpus for node in nodes):
        return []
    healthy = [replace(node, gpus=node.gpus - node.broken_gpus) for node in nodes]
    if hold_all(healthy, demand):
        return []
    types = {node.gpu_type for node in nodes if node.broken_gpus}
    words = _words_of([fault for fault in faults() if fault.gpu_type in types])
    return [f"gpus: too few are healthy{words}; the job waits until they work again"]


def _words_of(faults: Sequence[GpuFault]) -> str:
    """Return words that name some faults after a message; "" without any."""
    words = "".join(f"; {fault}" for fault in faults[:FAULTS_NAMED])
    if len(faults) > FAULTS_NAMED:
        words += f"; and {len(faults) - FAULTS_NAMED} more"
    return words


def _check_gang(
    cluster: str,
    demand: Demand,
    nodes: Sequence[NodeCapacity],
    faults: Callable[[], Sequence[GpuFault]],
) -> list[str]:
    """Return a warning that a job is spread over nodes; raise Infeasible if it cannot be."""
    wanted = demand.gpus_min // demand.units
    noun = "GPU" if wanted == 1 else "GPUs"
    missing = f"no node of {cluster} can serve {wanted} {noun}{demand.of_unit}"
    able = [node for node in nodes if not node.features or GANG in node.features]
    if not demand.batch and hold_gang(able, demand):
        return [
            f"gpus: {missing}; the job is a gang on several nodes, whose processes must join"
            " (docs/training.md)"
        ]
    largest = f"the largest that could serve the job has {_gpus_of_largest(nodes)}"
    words = _words_of([fault for fault in faults() if not fault.gpu_type])
    raise Infeasible("gpus", f"{missing}; {largest}{_why_no_gang(demand, nodes)}{words}")


def _why_no_gang(demand: Demand, nodes: Sequence[NodeCapacity]) -> str:
    """Return words that say why nodes together do not do either, and what helps; "" if nothing."""
    if demand.batch:
        gpus = demand.gpus_min
        may_divide = demand.units == 1 and gpus > 1 and any(node.gpus for node in nodes)
        return f"; give units, such as {gpus}, to divide it over nodes" if may_divide else ""
    if hold_gang(nodes, demand):
        return "; the agents of the others cannot run gangs, install newer ones"
    together = max(_gang_units(nodes, demand).values(), default=0)
    if together <= max(node.gpus for node in nodes):
        return ""
    types = "all types" if demand.may_mix else "one type"
    return f"; nodes of {types} can serve {together} together"


def hold_gang(nodes: Sequence[NodeCapacity], demand: Demand) -> bool:
    """Return True if these nodes, when empty, hold a training job's GPUs together."""
    return any(units >= demand.gpus_min for units in _gang_units(nodes, demand).values())


def _gang_units(nodes: Sequence[NodeCapacity], demand: Demand) -> dict[str, int]:
    """Return the GPUs of a gang that nodes of each type hold; of all together if it may mix."""
    request = demand.gang_request
    units: dict[str, int] = {}
    for node in nodes:
        together = "" if demand.may_mix else node.gpu_type
        fitting = max(0, request.fitting(node.free))
        units[together] = units.get(together, 0) + fitting * node.count
    return units


def _gpus_of_largest(nodes: Sequence[NodeCapacity]) -> str:
    """Return words for the GPUs of the node that has most."""
    largest = max(nodes, key=lambda n: n.gpus)
    return f"{largest.gpus} of type {largest.gpu_type}" if largest.gpus else "none"


def _check_units(cluster: str, demand: Demand, nodes: Sequence[NodeCapacity]) -> None:
    """Raise Infeasible unless these nodes, when empty, hold all units together."""
    able_nodes, most_units = _nodes_and_units(nodes, demand)
    if demand.nodes > able_nodes:
        noun = "node" if able_nodes == 1 else "nodes"
        missing = f"only {able_nodes} {noun} of {cluster} could hold a unit"
        raise Infeasible("nodes", f"{missing}, not {demand.nodes}; ask for fewer")
    if demand.units > most_units:
        which = f"{demand.nodes} nodes" if demand.nodes else "all nodes"
        missing = f"{which} of {cluster} hold at most {most_units} such units together"
        raise Infeasible("units", f"{missing}, not {demand.units}; ask for fewer or smaller ones")


def hold_all(nodes: Sequence[NodeCapacity], demand: Demand) -> bool:
    """Return True if these nodes, when empty, hold all units of the job together."""
    able_nodes, most_units = _nodes_and_units(nodes, demand)
    if demand.nodes <= able_nodes and demand.units <= most_units:
        return True
    return not demand.batch and hold_gang(nodes, demand)


def _nodes_and_units(nodes: Sequence[NodeCapacity], demand: Demand) -> tuple[int, int]:
    """Return the number of nodes that hold a unit, and of units that the largest nodes hold.

    As many of the largest nodes count as the job asks for, else all. Units with GPUs are on nodes
    of one type, the one that holds most, unless the job may mix types.
    """
    request = demand.request
    of_types: dict[str, list[int]] = {}
    for node in nodes:
        mixed = demand.may_mix or not request.gpus
        together = "" if mixed else node.gpu_type
        of_types.setdefault(together, []).extend([max(0, request.fitting(node.free))] * node.count)
    best = (0, 0)
    for units_by_node in of_types.values():
        units_by_node.sort(reverse=True)
        able_nodes = sum(units > 0 for units in units_by_node)
        counted = units_by_node[: demand.nodes] if demand.nodes else units_by_node
        best = max(best, (able_nodes, sum(counted)), key=lambda of: (_is_enough(of, demand), of[1]))
    return best


def _is_enough(found: tuple[int, int], demand: Demand) -> bool:
    able_nodes, units = found
    return able_nodes >= demand.nodes and units >= demand.units


def _fits(wanted: float, has: float) -> bool:
    return demanded(wanted) <= available(has)


def _warnings(demand: Demand, nodes: Sequence[NodeCapacity]) -> list[str]:
    """Return warnings of GPUs that cannot be used, and of resources and labels still missing."""
    warnings = []
    most_gpus = max(n.gpus for n in nodes)
    is_gang = demand.gpus_min > most_gpus and not demand.batch
    if demand.gpus_max // demand.units > most_gpus and not is_gang:
        used = f"at most {most_gpus} of {demand.gpus_max} can be used"
        warnings.append(f"gpus: {used}; the largest node has {_gpus_of_largest(nodes)}")
    for name, wanted in demand.resources:
        most = max(dict(n.resources).get(name, 0.0) for n in nodes)
        if not _fits(wanted, most):
            missing = f"no node that fits has {wanted:g} {name}{demand.of_unit} yet"
            warnings.append(
                f"resources: {missing}, the most is {most:g}; the job waits until one does"
            )
    if demand.labels and not any(satisfied(demand.labels, n.labels) for n in nodes):
        labels = ", ".join(demand.labels).replace(ALTERNATIVE, " or ")
        missing = f"no node that fits has {labels} yet"
        warnings.append(f"labels: {missing}; the job waits until one does")
    return warnings


def gpu_faults(cluster: Cluster) -> list[GpuFault]:
    """Return the unhealthy GPUs of a cluster's nodes, and nodes whose GPUs cannot be reached."""
    nodes = Node.objects.filter(cluster=cluster).exclude(role=Role.PROFILING).order_by("name")
    unreached = nodes.exclude(gpu_trouble="").values_list("name", "gpu_trouble")
    faults = [GpuFault(name, "", trouble) for name, trouble in unreached]
    unhealthy = Device.objects.filter(node__in=nodes, healthy=False)
    rows = unhealthy.order_by("node__name", "uuid").values_list(
        "node__name", "node__gpu_type__name", "trouble"
    )
    faults += [GpuFault(name, type_ or "", trouble) for name, type_, trouble in rows]
    return faults


SEEN_S = 5
"""Seconds for which capacities are cached: reading 1,000 nodes takes a third of a submission."""


def _cache_key(cluster: Cluster) -> str:
    return f"loadmaster.capacities.{cluster.pk}"


class Inventory:
    """Clusters, teams, GPU types and node capacities, each read once on demand."""

    def __init__(self) -> None:
        self._capacities: dict[int, list[NodeCapacity]] = {}
        self._teams: dict[int | None, dict[str, Team]] = {}
        self._kinds: dict[KindKey, Kind] = {}

    @cached_property
    def clusters(self) -> dict[str, Cluster]:
        return {c.name: c for c in Cluster.objects.order_by("name")}

    @cached_property
    def gpu_types(self) -> list[str]:
        return list(GpuType.objects.order_by("name").values_list("name", flat=True))

    def warnings(self, cluster: Cluster, demand: Demand) -> list[str]:
        """Return warnings of missing capacity; raise Infeasible if no present node would do.

        Cached capacities suffice for a job that fits without a warning. All else is decided by
        those in the database.
        """
        seen = self._capacities.get(cluster.pk) or caches["process"].get(_cache_key(cluster))
        if seen:
            with suppress(Infeasible):
                if not check_feasible(cluster.name, demand, seen):
                    return []
        faults = partial(gpu_faults, cluster)
        return check_feasible(cluster.name, demand, self.capacities(cluster), faults)

    def capacities(self, cluster: Cluster) -> list[NodeCapacity]:
        """Return the capacities of the cluster's empty production nodes, equal nodes once."""
        if cluster.pk not in self._capacities:
            self._capacities[cluster.pk] = _read_capacities(cluster)
            caches["process"].set(_cache_key(cluster), self._capacities[cluster.pk], SEEN_S)
        return self._capacities[cluster.pk]

    def gpus_of_nodes(
        self, cluster: Cluster, types: Collection[str], labels: Collection[str]
    ) -> int:
        """Return the GPUs of each node with one of these types and with these labels.

        0 if they have different numbers. Without types the nodes without GPUs count too. A label
        may be the name of a type.
        """
        known_types = {name.casefold() for name in types}
        numbers = set[int]()
        for node in self.capacities(cluster):
            gpu_type = node.gpu_type.casefold()
            is_of_type = not known_types or gpu_type in known_types
            if is_of_type and satisfied(labels, {*node.labels, node.gpu_type, gpu_type}):
                numbers.add(node.gpus - node.broken_gpus)
        return numbers.pop() if len(numbers) == 1 else 0

    def kinds(self, names: Mapping[KindKey, str]) -> Mapping[KindKey, Kind]:
        """Return the kinds of these keys, created if new; `names` are the users' own, or ""."""
        new = {key: name for key, name in names.items() if key not in self._kinds}
        if new:
            self._kinds |= kinds_for(new)
        return self._kinds

    def teams(self, user: User | AnonymousUser) -> dict[str, Team]:
        if user.pk not in self._teams:
            self._teams[user.pk] = {t.name: t for t in teams_to_submit_to(user)}
        return self._teams[user.pk]


def _read_capacities(cluster: Cluster) -> list[NodeCapacity]:
    """Read the capacities of the cluster's empty production nodes, equal nodes once."""
    # GPUs are counted for each node by itself: grouping by all its columns took twice as long.
    devices = Device.objects.filter(node=OuterRef("pk")).order_by().values("node")
    gpus = Subquery(devices.annotate(count=Count("pk")).values("count"))
    unhealthy = devices.filter(healthy=False)
    broken_gpus = Subquery(unhealthy.annotate(count=Count("pk")).values("count"))
    nodes = Node.objects.filter(cluster=cluster).exclude(role=Role.PROFILING)
    counted = nodes.annotate(gpus=Coalesce(gpus, 0), broken_gpus=Coalesce(broken_gpus, 0))
    rows = (
        counted.order_by("gpu_type__name")
        .values_list(
            "gpu_type__name",
            "gpus",
            F("cores") - F("reserved_cores"),
            F("memory_gb") - F("reserved_memory_gb"),
            "labels",
            "features",
            "resources",
            "broken_gpus",
        )
        .annotate(Count("pk"))
    )
    capacities = []
    for (
        gpu_type,
        gpus_of_node,
        cores,
        memory_gb,
        labels,
        features,
        resources,
        broken,
        count,
    ) in rows:
        capacity = NodeCapacity(
            gpu_type=gpu_type or "",
            gpus=gpus_of_node,
            cores=cores,
            memory_gb=memory_gb,
            labels=frozenset(labels),
            features=frozenset(features),
            resources=tuple(sorted(resources.items())),
            count=count,
            broken_gpus=broken,
        )
        capacities.append(capacity)
    return capacities
