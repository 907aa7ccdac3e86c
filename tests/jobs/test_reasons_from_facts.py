"""Every reason of a plan from a cluster's state: decided by a policy, explained, and worded."""

from math import inf
from typing import Any

import pytest

from controlplane.loop.live.record import waiting_detail
from controlplane.loop.rounds import decide, kept
from jobs.wording.explanation import explain
from policies.contract.plan import Expected, Placement, Plan, PlanStatus, WaitCode, Waiting
from policies.contract.snapshot import (
    JobPhase,
    NodeRole,
    NodeState,
    PriceInterval,
    RankPlacement,
    Snapshot,
)
from policies.host import registry
from policies.placement.waiting.explained import explained
from tests.builders_policies import a_job, a_kind, a_node, a_profile_request, a_snapshot, on

POLICIES = ("fifo", "cost_search", "max_min_fairness")
CHEAP_AT_2000 = (PriceInterval(0.0, 2000.0, 0.3, 1.3), PriceInterval(2000.0, inf, 0.1, 1.3))
LOST, CORDONED = NodeState.LOST, NodeState.CORDONED


def told(plan: Plan, snapshot: Snapshot, job: str = "j") -> tuple[str, str]:
    """Return (code, sentence) of a waiting job; nodes and jobs are named by their ids."""
    (entry,) = [w for w in explained(plan, snapshot) if w.job == job]
    ids = {name: name for name in (*snapshot.node_by_id, *snapshot.jobs.position)}
    found = explain("queued", entry.code.value, waiting_detail(entry, snapshot), ids)
    assert found.remedy
    assert len(found.sentence.split()) <= 15
    return entry.code.value, found.sentence


def decided(policy: str, snapshot: Snapshot) -> Plan:
    return decide(snapshot, registry.make(policy, {}))


def wide(node: str, **fields: Any) -> Any:
    return a_node(node, **{"gpus": 1, "cores": 8.0, "memory_gb": 32.0, **fields})


IMPOSSIBLE: dict[str, tuple[list[Any], dict[str, Any], str, str]] = {
    "no node at all": ([], {}, "nodes_unavailable", "The cluster has no nodes yet."),
    "a type that no node has": (
        [wide("n1"), wide("n2", gpu_type="T4")],
        {"allowed_types": ("A100",)},
        "types_unavailable",
        "No node is of type A100; there are T4 and V100.",
    ),
    "a label that no node has": (
        [wide("n1", labels=("zone=a",))],
        {"labels": ("zone=b",)},
        "label_unavailable",
        "No node has the label zone=b; nodes have zone=a.",
    ),
    "two labels that no node has together": (
        [wide("n1", labels=("a",)), wide("n2", labels=("b",))],
        {"labels": ("a", "b")},
        "label_unavailable",
        "No node has the labels a and b together.",
    ),
    "a runtime that no node offers": (
        [wide("n1", labels=("runtime:process",))],
        {"labels": ("runtime:docker",)},
        "runtime_unavailable",
        "No node that suits it offers the runtime docker.",
    ),
    "agents too old for its limits or units": (
        [wide("n1", labels=("runtime:process",))],
        {"labels": ("agent:limits", "runtime:process")},
        "agent_too_old",
        "The agent of n1 is too old for time limits.",
    ),
    "nodes that serve another team": (
        [wide("n1", labels=("runtime:process", "team:2"))],
        {"labels": ("runtime:process", "team:1")},
        "nodes_of_other_teams",
        "n1 serves another team: jobs are not isolated there.",
    ),
    "more GPUs than any node has": (
        [wide("n1", gpus=4), wide("n2", gpus=2)],
        {"gpus_min": 8, "gpus_max": 8},
        "no_node_fits",
        "It needs 8 GPUs, and nodes that suit it have at most 4.",
    ),
    "more memory than any node has": (
        [wide("n1")],
        {"memory_gb": 64.0},
        "no_node_fits",
        "It needs 64 GB of memory, and nodes that suit it have at most 32.",
    ),
    "more at once than any node has": (
        [wide("n1", gpus=2), wide("n2", memory_gb=64.0)],
        {"gpus_min": 2, "gpus_max": 2, "memory_gb": 64.0},
        "no_node_fits",
        "No node has all that it needs at once.",
    ),
    "the only suitable node is lost": (
        [wide("n1", state=LOST), wide("n2", gpu_type="T4")],
        {"allowed_types": ("V100",)},
        "nodes_lost",
        "It waits for n1, which is lost.",
    ),
    "the only node of known speed is lost": (
        [wide("n1", state=LOST), wide("n2", gpu_type="T4")],
        {"kind": "known on V100"},
        "nodes_lost",
        "It waits for n1, which is lost.",
    ),
    "the only node is lost, and no speed is known": (
        [wide("n1", state=LOST)],
        {"kind": "new"},
        "nodes_lost",
        "It waits for n1, which is lost.",
    ),
    "all suitable nodes are cordoned": (
        [wide("n1", state=CORDONED), wide("n2", state=CORDONED), wide("n3", gpu_type="T4")],
        {"allowed_types": ("V100",)},
        "nodes_unavailable",
        "Only n1 and n2 could run it, but take no new jobs now.",
    ),
    "the only node serves profiling alone": (
        [wide("n1", role=NodeRole.PROFILING)],
        {},
        "nodes_unavailable",
        "Only n1 could run it, but takes no new jobs now.",
    ),
    "no speed is known on an open node": (
        [wide("n1"), wide("n2", gpu_type="T4")],
        {"kind": "new"},
        "no_throughput",
        "Its speed on T4 and V100 is not known.",
    ),
    "it failed on the only open node": (
        [wide("n1"), wide("n2", state=CORDONED, labels=("apart:n1",))],
        {"labels": ("apart:n1",), "allowed_types": ("V100",)},
        "nodes_unavailable",
        "Only n2 could run it, but takes no new jobs now.",
    ),
    "it failed on the only node": (
        [wide("n1")],
        {"labels": ("apart:n1",)},
        "nodes_avoided",
        "It failed on n1, and avoids it for ten minutes.",
    ),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_job_that_no_open_node_could_run_is_told_what_none_has(case: str, policy: str) -> None:
    nodes, fields, code, sentence = IMPOSSIBLE[case]
    kinds = [
        a_kind("k", {(t, g): 1.0 for t in ("V100", "T4", "A100") for g in range(1, 9)}),
        a_kind("known on V100", {("V100", 1): 1.0}),
        a_kind("new", {}),
    ]
    snapshot = a_snapshot(nodes, [a_job("j", **fields)], kinds)
    assert told(decided(policy, snapshot), snapshot) == (code, sentence)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_without_a_free_gpu_is_told_who_holds_which_node(policy: str) -> None:
    jobs = [
        a_job("first", priority=1, due_s=1090.0, tardiness_weight=1.0, running=on("n1", "gpu0"))
    ]
    snapshot = a_snapshot([wide("n1")], [*jobs, a_job("j", arrival_s=1.0)])
    assert told(decided(policy, snapshot), snapshot)[0] in ("no_capacity", "better_node")
    said = told(decided("fifo", snapshot), snapshot)
    assert said == ("no_capacity", "It waits for n1, held by first.")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_lacks_watts_is_told_how_many(policy: str) -> None:
    jobs = [a_job("first", running=on("n1", "gpu0")), a_job("j", arrival_s=1.0)]
    snapshot = a_snapshot([wide("n1"), wide("n2")], jobs, power_cap_w=600.0)
    plan = decided(policy, snapshot)
    waits = plan.waiting[0].job
    assert told(plan, snapshot, waits) == (
        "power_cap",
        "The cluster's power cap is 460 W too low for it.",
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_with_dependencies_is_told_which(policy: str) -> None:
    snapshot = a_snapshot(jobs=[a_job("a"), a_job("b"), a_job("j", dependencies=("a", "b"))])
    assert told(decided(policy, snapshot), snapshot) == (
        "dependency",
        "It waits for a and b to complete.",
    )


@pytest.mark.parametrize(
    ("role", "sentence"),
    [
        (NodeRole.PROFILING, "Its kind is being measured first, on n2."),
        (
            NodeRole.PRODUCTION,
            "Its kind is measured first, once a node for profiling is free.",
        ),
    ],
)
def test_a_job_whose_kind_is_measured_is_told_where(role: NodeRole, sentence: str) -> None:
    jobs = [a_job("j", phase=JobPhase.PROFILING)]
    nodes = [wide("n1"), wide("n2", role=role)]
    snapshot = a_snapshot(nodes, jobs, profiling=[a_profile_request("j")])
    plan = decided("fifo", snapshot)
    if not plan.waiting:  # it is being measured itself; another of its kind is told where
        plan = Plan(
            plan.policy, plan.status, plan.placements, (Waiting("j", WaitCode.AWAITING_PROFILE),)
        )
    assert told(plan, snapshot) == ("awaiting_profile", sentence)


def test_a_job_of_a_failed_round_is_told_that_it_is_tried_again() -> None:
    snapshot = a_snapshot(jobs=[a_job("j")])
    assert told(kept(snapshot, "broken", "it broke"), snapshot) == (
        "solver_failed",
        "The last decision failed; running jobs go on, and it is tried again.",
    )


def planned(*waiting: Waiting, placed: tuple[Placement, ...] = ()) -> Plan:
    return Plan("planned", PlanStatus.HEURISTIC, placed, waiting)


def later(job: str, start_s: float, node: str = "n1", gpus: int = 1) -> Waiting:
    """A job for which GPUs are free, expected on a node later."""
    return Waiting(job, WaitCode.POSTPONED, expected=Expected(start_s, None, (node,), gpus))


def seat(job: str, node: str, *devices: str) -> Placement:
    return Placement(job, (RankPlacement(node, devices),))


def test_a_job_that_waits_for_a_cheaper_hour_is_told_when_it_begins() -> None:
    snapshot = a_snapshot([wide("n1")], [a_job("j")], energy=CHEAP_AT_2000)
    assert told(planned(later("j", 2100.0)), snapshot) == (
        "cheaper_later",
        "It could use n1, but energy is cheaper from 1970-01-01 00:33 UTC.",
    )


def test_a_job_that_waits_for_a_better_node_is_told_which_and_who_holds_it() -> None:
    nodes = [wide("n1"), wide("n2", gpu_type="T4")]
    snapshot = a_snapshot(nodes, [a_job("a", running=on("n2", "gpu0")), a_job("j")])
    plan = planned(later("j", 2100.0, "n2"), placed=(seat("a", "n2", "gpu0"),))
    assert told(plan, snapshot) == ("better_node", "n2 costs less and is held by a.")


def test_a_job_beside_gpus_that_are_kept_for_another_is_told_for_whom() -> None:
    snapshot = a_snapshot([wide("n1", gpus=2)], [a_job("a"), a_job("j")])
    plan = planned(later("a", 1500.0, gpus=2), later("j", 2100.0))
    assert told(plan, snapshot) == (
        "reserved",
        "n1 is reserved for a, 2 GPUs from 1970-01-01 00:25 UTC.",
    )


def test_a_job_that_lost_its_gpus_is_told_to_whom() -> None:
    snapshot = a_snapshot([wide("n1")], [a_job("a"), a_job("j", running=on("n1", "gpu0"))])
    plan = planned(Waiting("j", WaitCode.POSTPONED), placed=(seat("a", "n1", "gpu0"),))
    assert told(plan, snapshot) == ("preempted", "It made way for a on n1.")


def test_a_policy_without_a_schedule_is_named_as_what_lets_gpus_idle() -> None:
    snapshot = a_snapshot([wide("n1")], [a_job("j")])
    assert told(planned(Waiting("j", WaitCode.POSTPONED)), snapshot) == (
        "postponed",
        "Enough is free, but the policy starts it later.",
    )


def test_a_job_that_others_outbid_is_told_how_much_it_lacks() -> None:
    snapshot = a_snapshot([wide("n1")], [a_job("j")])
    outbid = Waiting("j", WaitCode.OUTBID, price=0.3, worth=0.1)
    assert told(planned(outbid), snapshot) == (
        "outbid",
        "GPUs are free, but cost 3 times what it is worth to the policy.",
    )


def test_a_job_that_is_worth_its_price_was_not_outbid() -> None:
    snapshot = a_snapshot([wide("n1")], [a_job("j")])
    outbid = Waiting("j", WaitCode.OUTBID, price=0.1, worth=0.1)
    assert told(planned(outbid), snapshot)[0] == "postponed"


def test_a_job_whose_gpus_others_hold_was_not_outbid() -> None:
    snapshot = a_snapshot([wide("n1")], [a_job("a"), a_job("j")])
    outbid = Waiting("j", WaitCode.OUTBID, ("n1",), ("a",), price=0.3, worth=0.1)
    plan = planned(outbid, placed=(seat("a", "n1", "gpu0"),))
    assert told(plan, snapshot) == ("no_capacity", "It waits for n1, held by a.")


def test_an_expected_start_in_the_past_explains_nothing() -> None:
    snapshot = a_snapshot([wide("n1")], [a_job("j")], energy=CHEAP_AT_2000)
    assert told(planned(later("j", 900.0)), snapshot)[0] == "postponed"


def test_these_states_reach_every_code_of_a_plan() -> None:
    reached = {code for _, _, code, _ in IMPOSSIBLE.values()} | {
        "team_limit",  # tests/controlplane/loop/test_team_limits.py
        "not_spread",  # tests/policies/placement/test_gangs_over_nodes.py
        "no_capacity", "power_cap", "dependency", "awaiting_profile", "solver_failed",
        "cheaper_later", "better_node", "reserved", "preempted", "postponed", "outbid",
    }  # fmt: skip
    assert reached == {code.value for code in WaitCode}
