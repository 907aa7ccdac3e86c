"""Seats of one launch that end at different times: the others go on, and nobody waits for them."""

import pytest

from clusters.models import Cluster
from jobs.models import Assignment, Job
from loadmaster.features import SHARED, features_with
from loadmaster.protocol import AssignmentState
from policies.contract.plan import Placement, Plan, PlanStatus
from policies.contract.snapshot import RankPlacement
from tests.builders import a_cluster, a_job, a_node
from tests.builders_live import a_round, said, taken

pytestmark = pytest.mark.django_db


def a_batch_job(cluster: Cluster, units: int) -> Job:
    """A job whose every unit runs its command on cores of its own."""
    return a_job(
        cluster, units=units, cores=8.0, memory_gb=4.0, gpus_min=0, gpus_max=0,
        batch=True, preemptible=False, processes="each",
    )  # fmt: skip


def first_seat_ends() -> tuple[Assignment, Assignment]:
    """Both seats run, then the first has done its work."""
    first, second = map(taken, Assignment.objects.order_by("rank"))
    return said(first, AssignmentState.SUCCEEDED), second


@pytest.mark.parametrize("policy", ["backfilling", "area_backfilling", "pcp20", "cost_search"])
def test_a_batch_job_keeps_its_other_seat_and_the_next_job_starts_beside_it(policy: str) -> None:
    cluster = a_cluster(policy=policy)
    for _ in range(2):
        features = list(features_with("process", SHARED))
        a_node(cluster, gpus=0, epoch=1, features=features, cores=8.0, memory_gb=16.0)
    a_batch_job(cluster, 2)
    a_round(cluster)
    first, second = first_seat_ends()
    a_batch_job(cluster, 1)
    row = a_round(cluster)
    assert (row.status, row.rejected) == ("applied", [])
    assert Assignment.objects.get(job__units=1).node == first.node
    second.refresh_from_db()
    assert second.desired == "run"


@pytest.mark.parametrize("policy", ["backfilling", "cost_search", "max_min_fairness", "exact"])
def test_a_gang_keeps_its_other_rank_and_the_next_job_starts_beside_it(policy: str) -> None:
    cluster = a_cluster(policy=policy)
    nodes = [a_node(cluster, gpus=1, epoch=1, address=f"10.0.0.{i}") for i in (1, 2)]
    gang = a_job(cluster, gpus_min=2, gpus_max=2)
    ranks = tuple(RankPlacement(str(n.pk), (n.devices.get().uuid,)) for n in nodes)
    placed = Placement(str(gang.pk), ranks)
    a_round(cluster, lambda *_: Plan("told", PlanStatus.HEURISTIC, (placed,)))
    first, second = first_seat_ends()
    alone = a_job(cluster)
    row = a_round(cluster)
    assert (row.status, row.rejected) == ("applied", [])
    assert alone.assignments.get().node == first.node
    second.refresh_from_db()
    assert second.desired == "run"
