"""Two jobs on one emulated GPU: rounds on the server, a real agent, and real training processes."""

from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from clusters.models import Cluster, Node
from clusters.services.nodes import node_set_slots
from jobs.models import Assignment, AssignmentSlot, Job, Kind
from jobs.selectors import OTHERS
from profiling.models import PairMeasurement, PairProfile, PairRun
from tests.builders import a_cluster, a_gpu_type, a_job, a_kind, a_user
from tests.builders_agent import an_emulation, python, until
from tests.builders_agent_site import NodeSite
from tests.builders_live import a_round, a_round_of_waiting_events
from tests.builders_profiling import reconcile_profiles
from tests.builders_sharing import a_known_pair

pytestmark = pytest.mark.django_db

TRAINER = python(
    "import loadmaster.training as training\n"
    "done = [0]\n"
    "def save(path): path.write_text(str(done[0]))\n"
    "def load(path): done[0] = int(path.read_text())\n"
    "for batch in training.steps(range(10), save=save, load=load):\n"
    "    done[0] += 1\n"
)
STEP_S = {"fast": 0.1, "slow": 0.2, "big": 0.1, "huge": 0.1}
KEPT = {"fast": {"slow": 0.8}, "slow": {"fast": 0.5}, "big": {"huge": 0.0}}


@pytest.fixture
def cluster() -> Cluster:
    a_gpu_type("V100")
    sharing = {"policy": "max_min_fairness", "policy_parameters": {"form": "sharing"}}
    return a_cluster(heartbeat_s=0.5, lease_s=20.0, grace_s=10.0, **sharing)


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeSite]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    steps = {kind: {1: step_s} for kind, step_s in STEP_S.items()}
    site = NodeSite(cluster, tmp_path, emulation=an_emulation(count=1, step_s=steps, shared=KEPT))
    node_set_slots(site.node, 2)
    site.agent.tick()
    yield site
    site.leave()


@pytest.fixture
def kinds() -> dict[str, Kind]:
    return {
        name: a_kind(name, steps_per_s={("V100", 1): 1.0 / step_s})
        for name, step_s in STEP_S.items()
        if name in KEPT["fast"] | KEPT["slow"]
    }


def a_sharer(cluster: Cluster, kind: Kind, steps: int, **values: Any) -> Job:
    """A job of one GPU that may share it."""
    return a_job(
        cluster,
        kind=kind,
        name=kind.name,
        command=list(TRAINER),
        total_steps=steps,
        may_share=True,
        **values,
    )


def has_ended(job: Job) -> bool:
    """Whether the job is over, well or not."""
    job.refresh_from_db()
    return job.state in ("completed", "failed")


def assert_neighbours_are_shown(client: Client, jobs: list[Job]) -> None:
    """Each page says with whom a job shares, by name to those who may see the other; both stand on
    the node's GPU.
    """
    first, second = jobs
    client.force_login(first.user)
    assert f"shared with {OTHERS}" in unescape(client.get(f"/jobs/{first.pk}/").content.decode())
    client.force_login(a_user("grace", operator=True))
    assert f"shared with {second.name}" in client.get(f"/jobs/{first.pk}/").content.decode()
    queue, nodes = client.get("/").content.decode(), client.get("/nodes/").content.decode()
    for job in jobs:
        assert f"shared with {job.name}" in queue
        assert job.name in nodes


def test_two_jobs_share_a_gpu_end_well_and_leave_what_they_kept_beside_each_other(
    cluster: Cluster, site: NodeSite, kinds: dict[str, Kind], client: Client
) -> None:
    a_known_pair(kinds["fast"], kinds["slow"], (7.5, 4.0), source="estimated", samples=0)
    jobs = [a_sharer(cluster, kinds["fast"], 60), a_sharer(cluster, kinds["slow"], 25)]
    a_round(cluster)
    held = AssignmentSlot.objects.filter(live=True)
    assert sorted(held.values_list("slot", "share")) == [(0, 0.5), (1, 0.5)]
    assert held.values("device").distinct().count() == 1
    assert_neighbours_are_shown(client, jobs)
    until(lambda: all(map(has_ended, jobs)) and site.agent.is_idle, site.agent, within_s=60.0)
    assert {job.state for job in jobs} == {"completed"}
    assert {a.steps_done for a in Assignment.objects.all()} == {60, 25}
    pair = PairProfile.objects.get()
    assert (pair.source, pair.samples) == ("measured", 1)
    # the clocks' grid holds the pace from above; a machine too busy for it is slower, never faster
    assert pair.first_steps_per_s <= 0.8 / STEP_S["fast"] * 1.05
    assert pair.second_steps_per_s <= 0.5 / STEP_S["slow"] * 1.05
    assert PairMeasurement.objects.count() == 1
    client.force_login(a_user("root", operator=True))
    page = client.get("/kinds/").content.decode()
    assert "Pairs on one GPU" in page
    assert f"{pair.gpu_type}" in page


def looked_after(cluster: Cluster) -> None:
    """What the server does now and then: the profiler's reconciler, and a round if one is asked
    for.
    """
    reconcile_profiles(timezone.now())
    a_round_of_waiting_events(cluster)


@pytest.mark.slow
def test_a_pair_that_nobody_knows_is_measured_as_a_profile_run_and_then_shares(
    cluster: Cluster, site: NodeSite, kinds: dict[str, Kind]
) -> None:
    Node.objects.update(role="both")
    asked = {"profiling": "dedicated", "repeatable": True}
    jobs = [
        a_sharer(cluster, kinds["fast"], 100, **asked),
        a_sharer(cluster, kinds["slow"], 50, **asked),
    ]
    looked_after(cluster)
    launches = Assignment.objects.filter(purpose="profiling")
    assert [a.share for a in launches] == [0.5, 0.5]
    assert AssignmentSlot.objects.filter(live=True).values("device").distinct().count() == 1

    def all_over() -> bool:
        looked_after(cluster)
        return all(map(has_ended, jobs)) and site.agent.is_idle

    until(all_over, site.agent, within_s=120.0)
    assert {job.state for job in jobs} == {"completed"}
    assert [run.state for run in PairRun.objects.all()] == ["done"]
    measured = PairMeasurement.objects.order_by("pk")[0]
    assert {measured.first_assignment, measured.second_assignment} == set(launches)
    production = Assignment.objects.filter(purpose="training")
    assert {a.share for a in production} == {0.5}


@pytest.mark.slow
def test_two_that_do_not_fit_are_run_apart_and_neither_is_blamed(
    cluster: Cluster, site: NodeSite
) -> None:
    big = {name: a_kind(name, steps_per_s={("V100", 1): 10.0}) for name in ("big", "huge")}
    a_known_pair(big["big"], big["huge"], (8.0, 8.0), source="estimated", samples=0)
    jobs = [a_sharer(cluster, kind, 40, max_retries=0) for kind in big.values()]
    a_round(cluster)
    assert AssignmentSlot.objects.filter(live=True).values("device").distinct().count() == 1

    def all_over() -> bool:
        looked_after(cluster)
        return all(map(has_ended, jobs)) and site.agent.is_idle

    until(all_over, site.agent, within_s=120.0)
    assert [(job.state, job.retries_used) for job in jobs] == [("completed", 0)] * 2
    pair = PairProfile.objects.get()
    assert (pair.first_steps_per_s, pair.second_steps_per_s, pair.source) == (0.0, 0.0, "measured")
    assert sorted(Assignment.objects.values_list("state", flat=True)) == [
        "failed",
        "succeeded",
        "succeeded",
    ]
