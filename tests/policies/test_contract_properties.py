"""Rules that every policy keeps over any snapshot: one suite that draws the policy as well."""

from dataclasses import replace
from math import inf

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.contract import plan_json, snapshot_json
from policies.contract.plan import Placement, Plan, PlanStatus
from policies.contract.snapshot import JobColumns, Jobs, Purpose, Snapshot
from policies.contract.validation import validate_plan
from policies.placement.profiling import merge, reserve_profiling
from policies.placement.speed import Speeds
from tests.builders_colocation import wide_snapshots
from tests.builders_snapshots import snapshots
from tests.policies.test_contract import VARIANTS, decide
from tests.policies.test_contract_of_variants import VARIANTS as MORE_VARIANTS
from tests.policies.test_contract_of_variants import Variant

SHARING: tuple[Variant, ...] = (
    ("gandiva", {}),
    *(v for v in MORE_VARIANTS if v[1].get("form") == "sharing" or v[0] == "allox"),
)
KEEP_STARTED = ("fifo", "edf", "priority", "allox", "yarn_cs")
any_variant = st.sampled_from((*VARIANTS, *MORE_VARIANTS))


def examples(count: int) -> settings:
    """Settings of a property test with this many examples."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@examples(250)
@given(variant=any_variant, snapshot=snapshots())
def test_a_plan_beside_profile_runs_breaks_no_rule(variant: Variant, snapshot: Snapshot) -> None:
    _assert_no_rule_is_broken(variant, snapshot)


@examples(80)
@given(variant=st.sampled_from(SHARING), snapshot=wide_snapshots())
def test_a_plan_for_devices_that_jobs_share_breaks_no_rule(
    variant: Variant, snapshot: Snapshot
) -> None:
    _assert_no_rule_is_broken(variant, snapshot)


def _assert_no_rule_is_broken(variant: Variant, snapshot: Snapshot) -> None:
    name, parameters = variant
    reserved, runs = reserve_profiling(snapshot)
    plan = merge(decide(name, reserved, **parameters), runs)
    assert validate_plan(plan, reserved) == ()
    assert validate_plan(plan, snapshot) == ()


@examples(120)
@given(variant=any_variant, snapshot=snapshots())
def test_the_same_snapshot_gives_the_same_plan_and_stays_as_it_was(
    variant: Variant, snapshot: Snapshot
) -> None:
    name, parameters = variant
    before = snapshot.canonical_bytes
    plan = decide(name, snapshot, **parameters)
    again = decide(name, snapshot_json.from_json(snapshot_json.to_json(snapshot)), **parameters)
    assert plan_json.digest(plan) == plan_json.digest(again)
    assert snapshot.canonical_bytes == before


@examples(60)
@given(name=st.sampled_from(KEEP_STARTED), snapshot=snapshots())
def test_a_queue_never_touches_a_started_job_that_may_stay(name: str, snapshot: Snapshot) -> None:
    roomy = tuple(
        replace(n, cores=inf, memory_gb=inf, resources=(("fpga", 99.0),)) for n in snapshot.nodes
    )
    snapshot = replace(snapshot, nodes=roomy, power_cap_w=None, power_caps=())
    placed = {p.job: p.ranks for p in decide(name, snapshot).placements}
    for job in snapshot.jobs:
        runs = [r for r in job.running if r.purpose is Purpose.TRAINING]
        if (
            len(runs) == 1
            and all(s.share == 1.0 for s in runs[0].ranks)
            and placed.get(job.id) != runs[0].ranks
        ):
            assert _breaks_rules(snapshot, Placement(job.id, runs[0].ranks)), (
                f"{job.id} could have stayed"
            )


def _breaks_rules(snapshot: Snapshot, placement: Placement) -> bool:
    """Whether this placement alone is against the rules, or its job may not be placed at all."""
    row = snapshot.jobs.by_id(placement.job)
    held_up = any(d in snapshot.jobs.position for d in row.dependencies)
    others = {
        w.code for w in validate_plan(Plan("alone", PlanStatus.HEURISTIC, (placement,)), snapshot)
    } - {"job_missing"}
    return held_up or bool(others)


@examples(120)
@given(variant=any_variant, snapshot=snapshots())
def test_no_policy_stops_a_launch_within_its_least_run_time(
    variant: Variant, snapshot: Snapshot
) -> None:
    roomy = tuple(
        replace(n, cores=inf, memory_gb=inf, resources=(("fpga", 99.0),)) for n in snapshot.nodes
    )
    young = [replace(j, min_run_s=1e4, priority=0, due_s=inf) for j in snapshot.jobs]
    snapshot = replace(
        snapshot, nodes=roomy, power_cap_w=None, power_caps=(), jobs=Jobs(JobColumns.of(young))
    )
    placed = {p.job: p.ranks for p in decide(variant[0], snapshot, **variant[1]).placements}
    speeds = Speeds(snapshot.kinds)
    for job in snapshot.jobs:
        runs = [r for r in job.running if r.purpose is Purpose.TRAINING]
        if len(runs) != 1 or any(s.share != 1.0 for s in runs[0].ranks):
            continue
        is_known = speeds.on_ranks(job.kind, runs[0].ranks, snapshot.node_by_id) > 0.0
        if is_known and placed.get(job.id) != runs[0].ranks:
            assert _breaks_rules(snapshot, Placement(job.id, runs[0].ranks)), job.id
