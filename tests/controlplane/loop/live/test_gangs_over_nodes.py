"""Jobs with more GPUs than any node has, live: accepted, placed on several nodes, and measured."""

from typing import Any

import pytest

from clusters.models import Cluster
from controlplane.loop.live.observe import observe
from jobs.models import Assignment, Job
from policies.contract.snapshot import Source, Throughput
from profiling.models import Profile
from tests.builders import a_cluster, a_gpu_type, a_job, a_kind, a_node
from tests.builders_live import a_round, taken

pytestmark = pytest.mark.django_db

QUEUES_AND_SEARCHES = ("cost_search", "fifo", "edf", "priority", "randomized_greedy")
AGENT: dict[str, Any] = {"features": ["process", "gang"], "address": "192.0.2.1"}


@pytest.fixture
def cluster() -> Cluster:
    """Two nodes of two GPUs."""
    made = a_cluster()
    for _ in range(2):
        a_node(made, gpus=2, **AGENT)
    return made


def decided(cluster: Cluster, policy: str) -> list[Assignment]:
    """Assignments after a round, by rank."""
    Cluster.objects.filter(pk=cluster.pk).update(policy=policy, policy_parameters={})
    row = a_round(cluster)
    assert (row.status, row.rejected) == ("applied", [])
    return list(Assignment.objects.order_by("rank"))


def a_gang(cluster: Cluster, **values: Any) -> Job:
    return a_job(cluster, **{"name": "wide", "gpus_min": 3, "gpus_max": 3, **values})


@pytest.mark.parametrize("policy", QUEUES_AND_SEARCHES)
def test_three_gpus_are_on_two_nodes_of_two(cluster: Cluster, policy: str) -> None:
    a_gang(cluster)
    lead, member = decided(cluster, policy)
    assert (lead.gpus + member.gpus, lead.world_size, member.world_size) == (3, 2, 2)
    assert lead.node != member.node
    assert lead.gang_port == member.gang_port is not None
    assert lead.predicted_steps_per_s is not None
    assert lead.predicted_run_s is not None
    assert lead.predicted_energy_cost is not None


@pytest.mark.parametrize("policy", QUEUES_AND_SEARCHES)
def test_a_running_gang_over_nodes_stays(cluster: Cluster, policy: str) -> None:
    a_gang(cluster)
    for assignment in decided(cluster, policy):
        taken(assignment)
    assert len(decided(cluster, policy)) == 2


def test_a_node_whose_agent_runs_no_gangs_gets_no_rank(cluster: Cluster) -> None:
    a_node(cluster, gpus=2, features=["process"])
    a_gang(cluster)
    nodes = {
        assignment.node.features == AGENT["features"] for assignment in decided(cluster, "edf")
    }
    assert nodes == {True}


def test_the_snapshot_has_an_estimate_from_other_kinds(cluster: Cluster) -> None:
    other = a_kind(steps_per_s={("V100", 1): 1.0, ("V100", 2): 2.0})
    Profile.objects.create(
        kind=other, gpu_type=a_gpu_type(), gpus=2, spread=True, steps_per_s=1.0, source="measured"
    )
    kind = a_kind(steps_per_s={("V100", 1): 1.0, ("V100", 2): 2.0})
    a_gang(cluster, kind=kind)
    (view,) = observe(cluster.pk, 1000.0, 1).snapshot.kinds
    (spread,) = [known for known in view.throughputs if known.spread]
    assert isinstance(spread, Throughput)
    assert (spread.gpus, spread.source) == (3, Source.ESTIMATED)
    assert spread.steps_per_s == pytest.approx(3.0 * 0.5)
