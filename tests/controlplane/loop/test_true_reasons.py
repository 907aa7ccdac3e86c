"""Every reason for waiting is true: a plain check of what it says, over drawn clusters."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controlplane.loop.rounds import decide
from policies.contract.plan import (
    Placement,
    Plan,
    PlanStatus,
    WaitCode,
    Waiting,
    available,
    demanded,
    seat_demand,
)
from policies.contract.policy import Policy
from policies.contract.snapshot import (
    PROFILING,
    JobColumns,
    JobPhase,
    Jobs,
    JobView,
    NodeRole,
    NodeState,
    NodeView,
    Snapshot,
    TeamView,
)
from policies.host import registry
from policies.placement.waiting.explained import explained
from policies.placement.waiting.reason_rules import RULES
from tests.builders_colocation import wide_snapshots
from tests.builders_policies import a_kind
from tests.builders_snapshots import TYPES, snapshots
from tests.policies.test_contract import FEW, VARIANTS
from tests.policies.test_contract_of_variants import VARIANTS as MORE_VARIANTS
from tests.policies.test_contract_of_variants import Variant
from tests.policies.test_contract_properties import SHARING, examples

LABELS = ("imagenet", "ssd", "runtime:docker", "agent:limits", "team:1", "apart:n0")
RARELY = st.sampled_from([(), (), (), (), (), (), (), *[(label,) for label in LABELS]])


@st.composite
def mixed_snapshots(draw: st.DrawFn) -> Snapshot:
    """Draw a snapshot with training jobs, batch jobs, jobs without GPUs, labels and team limits."""
    snapshot = draw(snapshots())
    nodes = tuple(
        replace(node, labels=tuple(sorted({*node.labels, *draw(_labels_of_a_node())})))
        for node in snapshot.nodes
    )
    if draw(st.booleans()):
        rates = {(gpu_type, gpus): 1.0 * gpus for gpu_type in TYPES for gpus in range(1, 5)}
        kinds = tuple(a_kind(kind.id, rates) for kind in snapshot.kinds)
        snapshot = replace(snapshot, kinds=kinds)
    jobs = [draw(_any_sort(job)) for job in snapshot.jobs]
    requests = {request.job for request in snapshot.profiling}
    asked = {job.id for job in jobs if job.gpus_max and not job.batch} & requests
    return replace(
        snapshot,
        nodes=nodes,
        jobs=Jobs(JobColumns.of(jobs)),
        teams=(TeamView("a", max_gpus=draw(st.sampled_from([None, None, 1, 3]))), TeamView("b")),
        profiling=tuple(request for request in snapshot.profiling if request.job in asked),
    )


def _labels_of_a_node() -> st.SearchStrategy[tuple[str, ...]]:
    """Return a strategy for nodes that have nearly all labels."""
    return st.one_of(st.just(LABELS), st.just(LABELS), RARELY)


@st.composite
def _any_sort(draw: st.DrawFn, job: JobView) -> JobView:
    """Draw the job itself, with labels and a team, or a waiting one in the batch queue."""
    job = replace(
        job,
        team=draw(st.sampled_from(["a", "b"])),
        labels=tuple(sorted({*job.labels, *draw(RARELY)})),
        allowed_types=draw(st.sampled_from([(), job.allowed_types])),
        phase=draw(st.sampled_from([job.phase, JobPhase.WAITING]))
        if not job.running
        else job.phase,
    )
    sort = draw(st.sampled_from(["training", "training", "batch", "cores"]))
    if sort == "training" or job.running or job.phase is JobPhase.PROFILING:
        return job
    units = draw(st.integers(1, 4))
    gpus = 0 if sort == "cores" else units * draw(st.integers(0, 1))
    return replace(
        job,
        batch=True,
        units=units,
        gpus_min=gpus,
        gpus_max=gpus,
        exclusive=draw(st.sampled_from([False, False, True])),
        preemptible=False,
        expected_run_s=draw(st.sampled_from([inf, 60.0, 600.0])),
        **_request_of_units(draw, units),
    )


def _request_of_units(draw: st.DrawFn, units: int) -> dict[str, Any]:
    """Draw amounts for each unit, and how the units are spread over nodes."""
    return {
        "cores": draw(st.sampled_from([0.0, 1.0, 3.0])),
        "memory_gb": draw(st.sampled_from([0.0, 2.0])),
        "nodes": draw(st.sampled_from([0, 0, 1, units])),
        "units_per_node": draw(st.sampled_from([0, 0, 1])),
    }


any_variant = st.sampled_from((*VARIANTS, *MORE_VARIANTS))


def _made(variant: Variant) -> Policy:
    name, parameters = variant
    return registry.make(name, {**FEW.get(name, {}), **parameters})


@examples(150)
@given(variant=any_variant, snapshot=mixed_snapshots())
def test_every_reason_is_true_of_its_job(variant: Variant, snapshot: Snapshot) -> None:
    plan = decide(snapshot, _made(variant), variant[0])
    _assert_all_true(plan, snapshot)


@examples(50)
@given(variant=st.sampled_from(SHARING), snapshot=wide_snapshots())
def test_every_reason_beside_shared_devices_is_true(variant: Variant, snapshot: Snapshot) -> None:
    plan = decide(snapshot, _made(variant), variant[0])
    _assert_all_true(plan, snapshot)


@examples(50)
@given(
    snapshot=mixed_snapshots(), code=st.sampled_from(list(WaitCode)), names=st.sampled_from("nj")
)
def test_no_claim_of_any_policy_is_told_unless_true(
    snapshot: Snapshot, code: WaitCode, names: str
) -> None:
    claims = [
        Waiting(job, code, nodes=(f"{names}0",), jobs=(f"{names}1",), missing=("imagenet",))
        for job in snapshot.jobs.columns.ids
    ]
    _assert_all_true(Plan("claims", PlanStatus.HEURISTIC, (), tuple(claims)), snapshot)


def _assert_all_true(plan: Plan, snapshot: Snapshot) -> None:
    for entry in explained(plan, snapshot):
        check = CHECKS[entry.code]
        assert check(Case(plan, snapshot, entry)), entry


class Case:
    """Reason with its snapshot and plan, and a plain search for room."""

    def __init__(self, plan: Plan, snapshot: Snapshot, entry: Waiting) -> None:
        self.plan, self.snapshot, self.entry = plan, snapshot, entry
        self.job = snapshot.jobs.by_id(entry.job)
        self.row = snapshot.jobs.position[entry.job]

    def fits(self, without: Collection[str] | None = (), only: Collection[str] = ()) -> bool:
        """Return True if the job would fit now, power aside, were these jobs gone (None: all)."""
        placed = [p for p in self.plan.placements if without is not None and p.job not in without]
        nodes = [n for n in self.snapshot.nodes if n.takes_training and self.suits(n)]
        room = {n.id: self._room(n, placed, without) for n in nodes if not only or n.id in only}
        if not self.job.batch and self.job.gpus_max:
            return self._fits_as_training(room)
        by_type: dict[str, list[int]] = {}
        for n, (units, _) in room.items():
            is_mixed = self.job.may_mix or not self.job.gpus_min
            of = "" if is_mixed else self.snapshot.node_by_id[n].gpu_type
            by_type.setdefault(of, []).append(units)
        return any(self._holds_all(units) for units in by_type.values())

    def _fits_as_training(self, room: Mapping[str, tuple[int, int]]) -> bool:
        by_id = self.snapshot.node_by_id
        if not self.is_wide():
            return any(units and self.has_speed(by_id[n], g) for n, (units, g) in room.items())
        (kind,) = [k for k in self.snapshot.kinds if k.id == self.job.kind]
        known = {t.gpu_type for t in kind.throughputs if t.is_known and t.gpus}
        together: dict[str, int] = {}
        for n, (units, gpus) in room.items():
            gpu_type = by_id[n].gpu_type
            if units and gpu_type in known:
                of = "" if self.job.may_mix else gpu_type
                together[of] = together.get(of, 0) + gpus
        return max(together.values(), default=0) >= self.job.gpus_min

    def is_wide(self) -> bool:
        """Return True if no node that suits a training job and lasts has all its GPUs."""
        demand = seat_demand(self.snapshot.jobs.columns, self.row)
        wanted = {name: demanded(amount) for name, amount in demand.items() if amount}
        sizes = [
            len(n.devices)
            for n in self.snapshot.nodes
            if self.suits(n)
            and n.state is not NodeState.LOST
            and n.role is not NodeRole.PROFILING
            and all(amount <= _amounts(n).get(name, 0) for name, amount in wanted.items())
        ]
        return not self.job.batch and max(sizes, default=0) < self.job.gpus_min

    def suits(self, node: NodeView, *, avoided: bool = False) -> bool:
        """Return True if a node has the job's type and labels; `avoided`: its failed nodes too."""
        types = self.job.allowed_types
        labels = {of for of in self.job.labels if not (avoided and of.startswith("apart:"))}
        return (not types or node.gpu_type in types) and labels <= set(node.labels)

    def _holds_all(self, units: list[int]) -> bool:
        most = sorted([of for of in units if of > 0], reverse=True)
        nodes = self.job.nodes
        if nodes:
            return len(most) >= nodes and sum(most[:nodes]) >= self.job.units >= nodes
        return sum(most) >= self.job.units

    def _room(
        self, node: NodeView, placed: list[Placement], without: Collection[str] | None
    ) -> tuple[int, int]:
        """Return the units and the GPUs for which a node has room."""
        there = [(p, seat) for p in placed for seat in p.ranks if seat.node == node.id]
        columns, position = self.snapshot.jobs.columns, self.snapshot.jobs.position
        lonely = any(columns.others["exclusive"][position[p.job]] for p, _ in there)
        if lonely or (self.job.exclusive and there):
            return 0, 0
        taken = {device for _, seat in there for device in seat.devices}
        free = 0
        for device in node.devices:
            others = {h.job for h in device.held if h.job not in position or h.purpose is PROFILING}
            is_left = without is None or others <= set(without)
            free += device.healthy and device.id not in taken and is_left
        used: dict[str, int] = {}
        for p, seat in there:
            demand = seat_demand(columns, position[p.job], seat.units)
            if seat.cpu_quota is not None:
                demand["cores"] = seat.cpu_quota
            for name, amount in demand.items():
                used[name] = used.get(name, 0) + demanded(amount)
        left = {name: amount - used.get(name, 0) for name, amount in _amounts(node).items()}
        units = self.job.units_per_node or self.job.units if self.job.batch else 1
        while units and not self._has_room(left, free, units):
            units -= 1
        return units, free

    def _has_room(self, left: Mapping[str, int], free: int, units: int) -> bool:
        each = self.job.gpus_min // self.job.units
        if self.is_wide() and each:
            each = 1
        if each * units > free:
            return False
        demand = seat_demand(self.snapshot.jobs.columns, self.row)
        wanted = {name: demanded(amount) * units for name, amount in demand.items() if amount}
        return all(amount <= left.get(name, 0) for name, amount in wanted.items())

    def has_speed(self, node: NodeView, gpus: int) -> bool:
        (kind,) = [k for k in self.snapshot.kinds if k.id == self.job.kind]
        known = {t.gpus for t in kind.throughputs if t.gpu_type == node.gpu_type and t.is_known}
        return any(self.job.gpus_min <= of <= min(gpus, self.job.gpus_max) for of in known)


def _amounts(node: NodeView) -> dict[str, int]:
    amounts = {"cores": node.cores, "memory_gb": node.memory_gb, **dict(node.resources)}
    return {name: available(amount) for name, amount in amounts.items()}


def _no_capacity(case: Case) -> bool:
    """It does not fit, and would if the named jobs were gone, and its own profile runs."""
    gone = {*case.entry.jobs, case.job.id}
    return not case.fits() and case.fits(without=gone, only=case.entry.nodes)


def _no_node_fits(case: Case) -> bool:
    """No node that suits it has so much, even when empty."""
    suitable = [n for n in case.snapshot.nodes if case.suits(n, avoided=True)]
    for lack in case.entry.lacks:
        if lack.name == "units":
            return not case.fits(without=None) and lack.most < lack.wanted
        most = [_total(n, lack.name) for n in suitable]
        if max(most, default=0.0) != lack.most:
            return False
    return not case.fits(without=None)


def _total(node: NodeView, name: str) -> float:
    if name in ("gpus", "healthy_gpus"):
        return float(sum(device.healthy for device in node.devices))
    if name in ("cores", "memory_gb"):
        return float(getattr(node, name))
    return dict(node.resources).get(name, 0.0)


def _no_type(case: Case) -> bool:
    return not {n.gpu_type for n in case.snapshot.nodes} & set(case.entry.missing)


def _no_label(case: Case) -> bool:
    """The labels are on no node; on none of the named nodes; or on none together."""
    missing, nodes = set(case.entry.missing), case.snapshot.nodes
    if case.entry.nodes:
        named = [n for n in nodes if n.id in case.entry.nodes]
        return not any(missing & set(n.labels) for n in named)
    if missing <= set(case.entry.offered):
        typed = [n for n in nodes if not case.job.allowed_types or _has_type(case, n)]
        return len(missing) > 1 and not any(missing <= set(n.labels) for n in typed)
    return not any(missing & set(n.labels) for n in nodes)


def _has_type(case: Case, node: NodeView) -> bool:
    return not case.job.allowed_types or node.gpu_type in case.job.allowed_types


def _lacks_own_label(prefix: str) -> Any:
    """Return a check that no node of the job's types has all its labels of this prefix."""

    def check(case: Case) -> bool:
        own = {label for label in case.job.labels if label.startswith(prefix)}
        given = {label for label in case.job.labels if ":" not in label}
        typed = [n for n in case.snapshot.nodes if _has_type(case, n) and given <= set(n.labels)]
        named = [n for n in typed if n.id in case.entry.nodes or not case.entry.nodes]
        return bool(own) and not any(own <= set(n.labels) for n in named)

    return check


def _no_throughput(case: Case) -> bool:
    """No speed is known on the named types, and no other node would do."""
    types = case.entry.missing
    of_type = [n for n in case.snapshot.nodes if n.gpu_type in types]
    of_type = [n for n in of_type if case.suits(n, avoided=True)]
    known = any(case.has_speed(n, len(n.devices)) for n in of_type)
    return bool(of_type) and not known and not case.fits(without=None)


def _unavailable(case: Case) -> bool:
    """The named nodes take no new work, and no open node would do."""
    named = [n for n in case.snapshot.nodes if n.id in case.entry.nodes]
    if not named:
        return not case.snapshot.nodes
    return not any(n.takes_training for n in named) and not case.fits(without=None)


def _not_spread(case: Case) -> bool:
    """No node that suits it has all its GPUs, and open nodes have them together."""
    suiting = [n for n in case.snapshot.nodes if case.suits(n) and n.state is not NodeState.LOST]
    together = sum(_total(n, "gpus") for n in suiting if n.takes_training)
    return not case.fits(without=None) and together >= case.job.gpus_min


def _lost(case: Case) -> bool:
    named = [case.snapshot.node_by_id[n] for n in case.entry.nodes]
    return bool(named) and all(n.state is NodeState.LOST for n in named)


def _over_team_limit(case: Case) -> bool:
    limits = {t.name: t.max_gpus for t in case.snapshot.teams}
    return case.job.team == case.entry.team and limits[case.job.team] == case.entry.gpus


def _preempted(case: Case) -> bool:
    held = {(s.node, d) for run in case.job.running for s in run.ranks for d in s.devices}
    takers = {
        p.job
        for p in case.plan.placements
        for s in p.ranks
        if held & {(s.node, d) for d in s.devices}
    }
    return bool(case.entry.jobs) and set(case.entry.jobs) <= takers


def _reserved(case: Case) -> bool:
    (node,), (job,) = case.entry.nodes, case.entry.jobs
    (other,) = [w for w in case.plan.waiting if w.job == job]
    at_node = other.expected is not None and node in other.expected.nodes
    return case.fits() and at_node


def _cheaper_later(case: Case) -> bool:
    now = case.snapshot.energy_at(case.snapshot.now_s)
    later = case.snapshot.energy_at(case.entry.from_s or 0.0)
    assert now is not None
    assert later is not None
    return case.fits() and later.price_per_kwh * later.pue < now.price_per_kwh * now.pue


def _better_node(case: Case) -> bool:
    return case.fits() and not case.fits(only=case.entry.nodes)


def _outbid(case: Case) -> bool:
    """Return True if it would fit, and lacks a part of the price."""
    price, worth = case.entry.price, case.entry.worth
    assert price is not None
    assert worth is not None
    return price > worth and case.fits()


CHECKS = {
    WaitCode.NO_CAPACITY: _no_capacity,
    WaitCode.POSTPONED: lambda case: case.fits(),
    WaitCode.PREEMPTED: _preempted,
    WaitCode.CHEAPER_LATER: _cheaper_later,
    WaitCode.BETTER_NODE: _better_node,
    WaitCode.RESERVED: _reserved,
    WaitCode.AWAITING_PROFILE: lambda case: case.job.phase is JobPhase.PROFILING,
    WaitCode.NO_THROUGHPUT: _no_throughput,
    WaitCode.NO_NODE_FITS: _no_node_fits,
    WaitCode.TYPES_UNAVAILABLE: _no_type,
    WaitCode.LABEL_UNAVAILABLE: _no_label,
    WaitCode.RUNTIME_UNAVAILABLE: _lacks_own_label("runtime:"),
    WaitCode.AGENT_TOO_OLD: _lacks_own_label("agent:"),
    WaitCode.NODES_OF_OTHER_TEAMS: _lacks_own_label("team:"),
    WaitCode.NODES_AVOIDED: _lacks_own_label("apart:"),
    WaitCode.DEPENDENCY: lambda case: bool(set(case.entry.jobs) & set(case.job.dependencies)),
    WaitCode.POWER_CAP: lambda case: case.fits() and case.snapshot.cap_w is not None,
    WaitCode.NODES_UNAVAILABLE: _unavailable,
    WaitCode.NODES_LOST: _lost,
    WaitCode.NOT_SPREAD: _not_spread,
    WaitCode.SOLVER_FAILED: lambda case: case.plan.status.value == "kept",
    WaitCode.TEAM_LIMIT: _over_team_limit,
    WaitCode.OUTBID: _outbid,
}


def test_every_code_has_a_rule_and_a_check() -> None:
    assert set(RULES) == set(WaitCode)
    assert set(CHECKS) == set(WaitCode)
