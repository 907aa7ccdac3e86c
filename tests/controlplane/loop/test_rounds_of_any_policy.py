"""A round leaves nothing out of what built-in policies decide, beside batch jobs or not."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.loop.rounds import decision_of
from policies.contract.snapshot import JobColumns, JobPhase, Jobs, Snapshot
from policies.contract.validation import validate_plan
from policies.host import registry
from tests.builders_snapshots import snapshots

NAMES = ("fifo", "edf", "cost_search", "randomized_greedy", "backfilling", "max_min_fairness")


@st.composite
def with_batch_jobs(draw: st.DrawFn) -> Snapshot:
    """A snapshot some of whose waiting jobs are batch jobs of one unit."""
    snapshot = draw(snapshots())
    jobs = [
        replace(job, batch=True, gpus_max=job.gpus_min, preemptible=False)
        if job.phase is JobPhase.WAITING and draw(st.booleans())
        else job
        for job in snapshot.jobs
    ]
    return replace(snapshot, jobs=Jobs(JobColumns.of(jobs)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(NAMES), snapshot=with_batch_jobs())
def test_nothing_is_left_out_of_a_built_in_policys_plan(name: str, snapshot: Snapshot) -> None:
    decision = decision_of(snapshot, registry.make(name), name)
    assert decision.left_out == ()
    assert validate_plan(decision.plan, snapshot) == ()
