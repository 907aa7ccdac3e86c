"""The JSON forms: one spelling, strict reading, and no change without a new version.

Golden files are written by `python -m tests.policies.test_forms`; it refuses to give a version that
exists another meaning.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings

from foundation import forms
from policies.contract import plan_json, snapshot_json
from policies.contract.plan import (
    PLAN_VERSION,
    Expected,
    Placement,
    Plan,
    PlanStatus,
    WaitCode,
    Waiting,
)
from policies.contract.snapshot import (
    SNAPSHOT_VERSION,
    GpuTypeView,
    JobPhase,
    KindView,
    NodeRole,
    NodeState,
    PairThroughput,
    PowerCapStep,
    PriceInterval,
    Purpose,
    RankPlacement,
    ResourceUse,
    Running,
    SlotHold,
    Snapshot,
    Source,
    TeamOrder,
    TeamView,
    Throughput,
    Trigger,
)
from policies.host import registry
from tests.builders_policies import (
    a_batch_job,
    a_cpu_node,
    a_device,
    a_job,
    a_kind,
    a_node,
    a_profile_request,
    a_profile_run,
    a_snapshot,
    on,
    seated,
)
from tests.builders_snapshots import snapshots

GOLDEN = Path(__file__).parent / "golden"
SCHEMAS = Path(plan_json.__file__).parent / "schemas"

SNAPSHOTS: Mapping[str, Snapshot] = {
    "empty": a_snapshot(nodes=[]),
    "nodes": a_snapshot(
        [
            a_node(
                "n1",
                cores=30.0,
                memory_gb=120.0,
                labels=("imagenet",),
                resources=(("fpga", 1.0),),
                rack="r1",
                link_gbps=100.0,
            ),
            a_node(
                "n2", "T4", 1, state=NodeState.DRAINING, drain_until_s=5000.0, role=NodeRole.BOTH
            ),
            a_node(
                "n3",
                devices=(a_device("gpu0", slots=2, healthy=False, emulated=True),),
                power_w=(300.0, 400.5),
            ),
        ],
        gpu_types=(GpuTypeView("T4", 8.1, 16.0), GpuTypeView("V100", 15.7, 32.0)),
    ),
    "teams_and_prices": a_snapshot(
        gpu_types=(GpuTypeView("T4", 8.1, 16.0, 0.35), GpuTypeView("V100", 15.7, 32.0)),
        teams=(TeamView("speech", 2.5, TeamOrder.FIFO), TeamView("vision", max_gpus=8)),
    ),
    "jobs": a_snapshot(
        jobs=[
            a_job(
                "a",
                name="train",
                due_s=9000.0,
                deadline_s=9500.0,
                walltime_s=3600.0,
                tardiness_weight=0.001,
                weight=2.0,
                priority=3,
                team="t",
                user="u",
                cores=4.0,
                memory_gb=8.0,
                resources=(("fpga", 1.0),),
                gpus_min=2,
                gpus_max=4,
                allowed_types=("V100",),
                labels=("imagenet",),
                may_mix=True,
                may_share=True,
                restart_cost_s=12.5,
                received_s=(("T4", 3.0), ("V100", 7.5)),
            ),
            a_job("b", dependencies=("a",), phase=JobPhase.PROFILING),
        ]
    ),
    "batch": a_snapshot(
        [a_cpu_node("c1", resources=(("mic", 2.0),))],
        [
            a_batch_job("w", units=3, resources=(("mic", 1.0),), units_per_node=2, exclusive=True),
            a_batch_job(
                "r",
                units=2,
                nodes=1,
                expected_run_s=300.0,
                expected_source="user",
                running=seated(RankPlacement("c1", (), units=2)),
            ),
        ],
        [KindView("batch", throughputs=(Throughput("", 0, 0.5, Source.ESTIMATED),))],
    ),
    "kinds": a_snapshot(
        kinds=[
            a_kind(
                "k",
                name="lstm",
                setup_s=3.0,
                throughputs=(
                    Throughput("V100", 1, 2.5, Source.MEASURED, 60.0),
                    Throughput("V100", 4, 7.0, Source.ESTIMATED, spread=True),
                ),
                pairs=(PairThroughput("k", "V100", 1.5, 1.25, Source.DECLARED),),
                usage=(
                    ResourceUse("V100", 4.0, 8.0, 0.9, None, Source.MEASURED),
                    ResourceUse("T4", 4.0, 8.0, 0.9, 65.5, Source.MEASURED),
                ),
            )
        ]
    ),
    "running": a_snapshot(
        [
            a_node("n1", gpus=4),
            a_node(
                "n2",
                gpus=2,
                devices=(a_device("gpu0", slots=2, held=(SlotHold("ghost", share=0.5),)),),
            ),
        ],
        [
            a_job(
                "a",
                running=(
                    Running(
                        1,
                        (RankPlacement("n1", ("gpu0", "gpu1"), cpu_quota=2.0),),
                        500.0,
                        2000.0,
                        70,
                    ),
                ),
            ),
            a_job("b", running=on("n1", "gpu2")),
        ],
    ),
    "profiling": a_snapshot(
        [a_node("n1", role=NodeRole.PROFILING)],
        [a_job("a", phase=JobPhase.PROFILING, running=(a_profile_run("n1", "gpu0"),))],
        profiling=(a_profile_request("a", copy=1, since_s=990.0),),
    ),
    "energy": a_snapshot(
        energy=(PriceInterval(0.0, 3600.0, 0.2, 1.33, 300.0), PriceInterval(3600.0, inf, 0.1, 1.2)),
        power_cap_w=2000.0,
        currency="CHF",
    ),
    "power_caps": a_snapshot(
        power_caps=(PowerCapStep(0.0, 3600.0, 1500.0), PowerCapStep(3600.0, inf, 900.0)),
        emissions_cost_per_kg=0.08,
    ),
    "trigger_and_memory": a_snapshot(
        trigger=Trigger(("job_submitted", "node_lost"), ("a",), ("n1",)),
        memory={"prices": {"V100": 0.5}, "levels": [1, 2, None]},
    ),
}

PLANS: Mapping[str, Plan] = {
    "empty": Plan("fifo", PlanStatus.HEURISTIC),
    "placements": Plan(
        "fifo",
        PlanStatus.HEURISTIC,
        (
            Placement(
                "a",
                (RankPlacement("n1", ("gpu0", "gpu1")), RankPlacement("n2", ("gpu0",), 0.5, 1.5)),
                until_s=2000.0,
            ),
            Placement(
                "b",
                (RankPlacement("n3", ("gpu0",)),),
                predicted_run_s=100.25,
                predicted_energy_cost=0.125,
            ),
            Placement("c", (RankPlacement("n3", ("gpu1",)),), 2, Purpose.PROFILING, steps_quota=20),
        ),
        objective=0.1,
    ),
    "waiting": Plan(
        "edf",
        PlanStatus.OPTIMAL,
        waiting=(
            Waiting(
                "a",
                WaitCode.NO_CAPACITY,
                jobs=("b", "c"),
                expected=Expected(1234.5, 2000.25, ("n1",), 2),
            ),
            Waiting("d", WaitCode.POWER_CAP, watts=170.0),
            Waiting("e", WaitCode.TYPES_UNAVAILABLE, nodes=("n1",)),
            Waiting("f", WaitCode.TEAM_LIMIT, gpus=8, team="vision"),
        ),
        objective=3.0,
        bound=2.5,
    ),
    "shares_and_memory": Plan(
        "share",
        PlanStatus.KEPT,
        shares={"a": {"T4": 0.25, "V100": 0.75}},
        memory={"risk": {"a": 0.5}},
        message="nothing new",
    ),
}

snapshot_cases = pytest.mark.parametrize("name", SNAPSHOTS)
plan_cases = pytest.mark.parametrize("name", PLANS)


def golden(kind: str, name: str) -> Any:
    return json.loads((GOLDEN / f"{kind}.{name}.json").read_text(encoding="utf-8"))


@snapshot_cases
def test_a_snapshot_is_written_as_in_its_golden_file_and_read_back(name: str) -> None:
    form = golden("snapshot", name)
    assert snapshot_json.to_json(SNAPSHOTS[name]) == form
    assert snapshot_json.from_json(form) == SNAPSHOTS[name]
    jsonschema.Draft202012Validator(snapshot_json.schema()).validate(form)


@plan_cases
def test_a_plan_is_written_as_in_its_golden_file_and_read_back(name: str) -> None:
    form = golden("plan", name)
    assert plan_json.to_json(PLANS[name]) == form
    assert plan_json.from_json(form) == PLANS[name]
    jsonschema.Draft202012Validator(plan_json.schema()).validate(form)


@plan_cases
def test_a_plan_of_the_first_version_is_still_read(name: str) -> None:
    assert plan_json.from_json({**golden("plan", name), "version": 1}) == PLANS[name]


def test_the_bound_on_a_start_in_an_older_plan_is_left_out() -> None:
    form = golden("plan", "waiting")
    form["waiting"][1]["earliest_s"] = 1234.5
    assert plan_json.from_json({**form, "version": 2}) == PLANS["waiting"]


@pytest.mark.parametrize("name", [name for name in SNAPSHOTS if name != "batch"])
def test_a_snapshot_of_the_first_version_is_still_read(name: str) -> None:
    form = {**golden("snapshot", name), "version": 1}
    added = {"power_caps", "emissions_cost_per_kg"}
    as_then = replace(SNAPSHOTS[name], power_caps=(), emissions_cost_per_kg=0.0)
    assert snapshot_json.from_json({k: v for k, v in form.items() if k not in added}) == as_then


def test_units_of_a_job_in_an_older_snapshot_are_the_demand_of_its_one_process() -> None:
    form = golden("snapshot", "jobs")
    form["jobs"][0]["units"] = 2
    job = snapshot_json.from_json({**form, "version": 4}).jobs[0]
    assert (job.units, job.cores, job.memory_gb) == (1, 8.0, 16.0)
    assert job.resources == (("fpga", 2.0),)


def test_whole_amounts_in_an_older_snapshot_are_of_all_units_too() -> None:
    form = golden("snapshot", "jobs")
    form["jobs"][0].update(units=2, cores=4, memory_gb=8)
    job = snapshot_json.from_json({**form, "version": 4}).jobs[0]
    assert (job.cores, job.memory_gb) == (8.0, 16.0)


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_snapshot_of_the_version_before_quotas_is_still_read(name: str) -> None:
    form = golden("snapshot", name)
    for node in form["nodes"]:
        del node["changes_quotas"]
    assert snapshot_json.from_json({**form, "version": 6}) == SNAPSHOTS[name]


@pytest.mark.parametrize(
    ("kind", "schema"), [("snapshot", snapshot_json.schema()), ("plan", plan_json.schema())]
)
def test_the_schema_checked_in_is_the_one_that_is_read(kind: str, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    assert json.loads((SCHEMAS / f"{kind}.schema.json").read_text(encoding="utf-8")) == schema


@pytest.mark.parametrize("kind", ["snapshot", "plan"])
def test_a_form_does_not_change_without_a_new_version(kind: str) -> None:
    assert golden("versions", kind).get(str(VERSIONS[kind])) == _fingerprint(kind), (
        "give the form a new version number"
    )


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(snapshot=snapshots())
def test_any_snapshot_and_its_plan_survive_their_forms(snapshot: Snapshot) -> None:
    text = snapshot.canonical_bytes
    assert snapshot_json.from_json(json.loads(text)) == snapshot
    plan = registry.make("edf")(snapshot)
    assert plan_json.from_json(json.loads(plan_json.canonical_bytes(plan))) == plan


def test_equal_snapshots_have_equal_digests_and_a_changed_one_has_another() -> None:
    first, second = a_snapshot(jobs=[a_job("a")]), a_snapshot(jobs=[a_job("a")])
    assert snapshot_json.digest(first) == snapshot_json.digest(second)
    assert snapshot_json.digest(first) != snapshot_json.digest(
        a_snapshot(jobs=[a_job("a", remaining_steps=99.0)])
    )


def test_a_snapshot_is_spelled_once_and_a_replaced_one_anew() -> None:
    snapshot = a_snapshot(jobs=[a_job("a")])
    spelled = snapshot.canonical_bytes
    assert snapshot.canonical_bytes is spelled
    assert snapshot == a_snapshot(jobs=[a_job("a")])
    later = replace(snapshot, now_s=snapshot.now_s + 1.0).canonical_bytes
    assert json.loads(later)["now_s"] == json.loads(spelled)["now_s"] + 1.0


def test_the_canonical_bytes_have_sorted_keys_and_no_spaces() -> None:
    text = plan_json.canonical_bytes(PLANS["empty"]).decode()
    assert text.startswith(
        '{"bound":null,"memory":{},"message":"","objective":null,"placements":[],"policy":"fifo"'
    )


def test_an_integer_where_a_float_is_due_does_not_change_the_digest() -> None:
    form = snapshot_json.to_json(a_snapshot())
    assert snapshot_json.digest(
        snapshot_json.from_json({**form, "now_s": 1000})
    ) == forms.digest_of(form)


def test_fields_with_a_default_may_be_left_out() -> None:
    form = snapshot_json.to_json(a_snapshot(jobs=[a_job("a")]))
    form["jobs"] = [
        {"id": "a", "kind": "k", "arrival_s": 0, "remaining_steps": 100, "total_steps": 100}
    ]
    assert snapshot_json.from_json(form) == a_snapshot(jobs=[a_job("a")])


VERSIONS = {"snapshot": SNAPSHOT_VERSION, "plan": PLAN_VERSION}


def _fingerprint(kind: str) -> str:
    """What the form of this version is: its schema, descriptions aside."""
    schema = snapshot_json.schema() if kind == "snapshot" else plan_json.schema()
    return hashlib.sha256(json.dumps(_bare(schema), sort_keys=True).encode()).hexdigest()


def _bare(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            k: _bare(v)
            for k, v in schema.items()
            if not (k == "description" and isinstance(v, str))
        }
    return [_bare(v) for v in schema] if isinstance(schema, list) else schema


def write_golden() -> None:
    """Write the golden files anew; a version whose form has changed is refused."""
    GOLDEN.mkdir(exist_ok=True)
    cases: dict[str, Any] = {
        f"snapshot.{n}": snapshot_json.to_json(s) for n, s in SNAPSHOTS.items()
    }
    cases |= {f"plan.{n}": plan_json.to_json(p) for n, p in PLANS.items()}
    for kind, version in VERSIONS.items():
        path = GOLDEN / f"versions.{kind}.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if known.setdefault(str(version), _fingerprint(kind)) != _fingerprint(kind):
            raise SystemExit(
                f"the form of {kind} version {version} has changed: give it a new version number"
            )
        cases[f"versions.{kind}"] = known
    for name, form in cases.items():
        (GOLDEN / f"{name}.json").write_text(
            json.dumps(form, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    write_golden()
