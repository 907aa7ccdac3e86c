"""Gavel's rounds of any snapshot: no plan breaks a rule, no GPU is idle for nothing, and turns
last.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.contract import plan_json, snapshot_json
from policies.contract.snapshot import JobPhase, NodeState, Purpose, Running, Snapshot
from policies.contract.validation import validate_plan
from policies.gavel.allocation.observe import observe
from policies.gavel.max_min_fairness import MaxMinFairness
from policies.gavel.rounds.placements import GroupRequests
from tests.builders_policies import a_device, a_job, a_node, a_snapshot, on
from tests.builders_rounds import GivenShares, after, placed, sharing_snapshots
from tests.policies.gavel.rounds.test_rounds import kinds

many = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


POLICIES = (
    MaxMinFairness(),
    MaxMinFairness(form="agnostic", weighted=False, recompute_s=1.0),
    MaxMinFairness(form="sharing", spread=True),
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.form)
@many
@given(first=sharing_snapshots(), elapsed_s=st.sampled_from([0.0, 100.0, 300.0]), data=st.data())
def test_no_plan_breaks_a_rule_round_after_round(
    policy: MaxMinFairness, first: Snapshot, elapsed_s: float, data: st.DataObject
) -> None:
    snapshot = replace(first, profiling=())
    for _ in range(3):
        plan = policy(snapshot)
        assert validate_plan(plan, snapshot) == ()
        again = policy(snapshot_json.from_json(snapshot_json.to_json(snapshot)))
        assert plan_json.digest(again) == plan_json.digest(plan)
        if any(run.purpose is Purpose.PROFILING for job in snapshot.jobs for run in job.running):
            return  # what becomes of profile runs is the world's to say
        gone = tuple(job.id for job in snapshot.jobs if data.draw(st.integers(0, 4)) == 0)
        snapshot = after(snapshot, plan, elapsed_s, gone=gone)


@many
@given(first=sharing_snapshots())
def test_no_gpu_is_idle_that_a_waiting_job_could_use(first: Snapshot) -> None:
    roomy = tuple(
        replace(n, cores=np.inf, memory_gb=np.inf, resources=(("fpga", 99.0),)) for n in first.nodes
    )
    snapshot = replace(first, nodes=roomy, profiling=(), power_cap_w=None, power_caps=())
    plan, observed = MaxMinFairness()(snapshot), observe(snapshot)
    in_use = {(seat.node, d) for p in plan.placements for seat in p.ranks for d in seat.devices}
    waiting = {w.job for w in plan.waiting}
    empty, requests = observe(snapshot).state, GroupRequests(observed)
    for row, job in enumerate(snapshot.jobs):
        if observed.classes.group_of[row] < 0:
            continue
        admitted = requests.admitting(row, 1)
        for n, node in enumerate(snapshot.nodes):
            given = empty.layout.ids(n, empty.idle[n])
            free = [d for d in given if (node.id, d) not in in_use]
            could = job.gpus_min <= snapshot.max_gpus and admitted >> n & 1
            rate = (
                snapshot.throughputs[
                    snapshot.job_kinds[row], snapshot.type_index[node.gpu_type], job.gpus_min
                ]
                if could
                else 0.0
            )
            assert job.id not in waiting or rate == 0.0 or len(free) < job.gpus_min, (
                f"{job.id} could run on {node.id}"
            )


@many
@given(snapshot=sharing_snapshots(), elapsed_s=st.floats(1.0, 260.0))
def test_while_turns_last_who_runs_goes_on(snapshot: Snapshot, elapsed_s: float) -> None:
    snapshot = replace(snapshot, profiling=(), power_cap_w=None, power_caps=())
    policy = MaxMinFairness(form="sharing", spread=True)
    first = policy(snapshot)
    later = after(snapshot, first, elapsed_s)
    if any(n.state is NodeState.DRAINING for n in snapshot.nodes):
        return
    ran = {job.id: job.running[0].ranks for job in later.jobs if job.phase is JobPhase.RUNNING}
    assert {p.job: p.ranks for p in policy(later).placements if p.job in ran} == ran


def test_a_job_that_runs_as_it_no_longer_may_is_seated_anew() -> None:
    jobs = [
        a_job("a", "a", running=on("v", "gpu0", "gpu1")),
        a_job("b", "b", running=(Running(0, on("v", "gpu2")[0].ranks, 0.0),)),
    ]
    broken = tuple(a_device(f"gpu{i}", healthy=i != 2) for i in range(4))
    snapshot = a_snapshot([a_node("v", "V100", devices=broken)], jobs, kinds("a", "b"))
    plan = GivenShares({"a": {"V100": 1.0}, "b": {"V100": 1.0}})(snapshot)
    assert validate_plan(plan, snapshot) == ()
    assert sorted(len(devices) for seats in placed(plan).values() for _, devices in seats) == [1, 1]
