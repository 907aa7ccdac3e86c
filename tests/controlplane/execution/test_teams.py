"""Nodes that do not isolate jobs serve one team: that of their first job, or the operator's."""

import pytest
from django.test import Client

from clusters.models import Cluster, Node
from controlplane.execution.services.assignments import accept
from jobs.models import Assignment, Job, Team
from loadmaster.features import ISOLATED, SHARED, features_with
from loadmaster.protocol import Accept
from policies.contract.plan import Placement
from policies.contract.snapshot import RankPlacement
from profiling.offers import offers, reachable
from tests.builders import a_cluster, a_job, a_node, a_team, a_user, at
from tests.builders_agents import a_node_with_agent, an_offer
from tests.builders_jobs import api
from tests.builders_live import a_round, refused
from tests.builders_profiling import a_new_job
from tests.controlplane.loop.live.test_units import told

pytestmark = pytest.mark.django_db

ALONE = list(features_with("process"))
NOT_ALONE = [
    list(features_with("process", ISOLATED)), list(features_with("process", SHARED)),
    list(features_with("docker")), [],
]  # fmt: skip


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(policy="fifo")


@pytest.fixture
def teams() -> tuple[Team, Team]:
    return a_team("first"), a_team("second")


def launched(*jobs: Job) -> list[bool]:
    return [Assignment.objects.filter(job=job).exists() for job in jobs]


class TestRounds:
    def test_of_two_teams_the_first_gets_the_node_and_the_other_is_told_why(
        self, cluster: Cluster, teams: tuple[Team, Team]
    ) -> None:
        node = a_node(cluster, features=ALONE, name="n1")
        first, second = (a_job(cluster, team=team) for team in teams)
        a_round(cluster)
        assert launched(first, second) == [True, False]
        node.refresh_from_db()
        assert node.team == teams[0]
        a_round(cluster)
        second.refresh_from_db()
        assert launched(first, second) == [True, False]
        assert second.waiting_code == "nodes_of_other_teams"
        assert second.waiting_detail["nodes"] == [str(node.pk)]

    def test_two_teams_in_one_plan_for_a_new_node_are_not_both_launched(
        self, cluster: Cluster, teams: tuple[Team, Team]
    ) -> None:
        node = a_node(cluster, features=ALONE)
        jobs = [a_job(cluster, team=team) for team in teams]
        devices = list(node.devices.order_by("uuid"))
        seats = [
            Placement(str(job.pk), (RankPlacement(str(node.pk), (device.uuid,)),))
            for job, device in zip(jobs, devices, strict=True)
        ]
        row = a_round(cluster, told(*seats))
        assert launched(*jobs) == [True, False]
        assert refused(row) == {jobs[1].name: "stale"}

    def test_a_team_whose_jobs_have_ended_keeps_the_node(
        self, cluster: Cluster, teams: tuple[Team, Team]
    ) -> None:
        a_node(cluster, features=ALONE, team=teams[0])
        second = a_job(cluster, team=teams[1])
        a_round(cluster)
        assert launched(second) == [False]

    def test_an_operator_gives_the_node_to_another_team(
        self, cluster: Cluster, teams: tuple[Team, Team]
    ) -> None:
        node = a_node(cluster, features=ALONE, team=teams[0])
        Node.objects.filter(pk=node.pk).update(team=teams[1])
        second = a_job(cluster, team=teams[1])
        a_round(cluster)
        assert launched(second) == [True]

    @pytest.mark.parametrize("features", NOT_ALONE, ids=["isolated", "shared", "docker", "unknown"])
    def test_other_nodes_serve_all_teams(
        self, cluster: Cluster, teams: tuple[Team, Team], features: list[str]
    ) -> None:
        runtime = "docker" if "docker" in features else "process"
        a_node(cluster, features=features)
        jobs = [a_job(cluster, team=team, runtime=runtime) for team in teams]
        a_round(cluster)
        assert launched(*jobs) == [True, True]
        assert not Node.objects.exclude(team=None).exists()

    def test_a_node_that_serves_one_team_leaves_the_others_their_own(
        self, cluster: Cluster, teams: tuple[Team, Team]
    ) -> None:
        alone = a_node(cluster, features=ALONE, team=teams[0], gpus=1)
        other = a_node(cluster, features=NOT_ALONE[0], gpus=1)
        jobs = [a_job(cluster, team=teams[1]), a_job(cluster, team=teams[0])]
        a_round(cluster)
        assert [Assignment.objects.get(job=job).node for job in jobs] == [other, alone]

    def test_jobs_of_two_teams_that_run_there_already_go_on(
        self, cluster: Cluster, teams: tuple[Team, Team]
    ) -> None:
        node = a_node(cluster, features=[], gpus=3)
        jobs = [a_job(cluster, team=team) for team in teams]
        a_round(cluster)
        Node.objects.filter(pk=node.pk).update(features=ALONE)
        third = a_job(cluster, team=teams[0])
        row = a_round(cluster)
        assert launched(*jobs, third) == [True, True, False]
        assert refused(row) == {third.name: "stale"}
        assert not Assignment.objects.exclude(desired="run").exists()


class TestAcceptance:
    def test_an_offer_to_a_node_of_another_team_is_rejected_without_its_secrets(
        self, teams: tuple[Team, Team]
    ) -> None:
        node = a_node_with_agent(features=ALONE, team=teams[0])
        offer = an_offer(node, a_job(node.cluster, team=teams[1]))
        with pytest.raises(Exception, match="serves another team"):
            accept(node.pk, offer.pk, Accept(node.epoch, offer.fence))
        offer.refresh_from_db()
        assert (offer.state, offer.reason_class) == ("rejected", "node")

    def test_the_first_acceptance_binds_the_node(self, teams: tuple[Team, Team]) -> None:
        node = a_node_with_agent(features=ALONE)
        offer = an_offer(node, a_job(node.cluster, team=teams[1]))
        spec = accept(node.pk, offer.pk, Accept(node.epoch, offer.fence))
        node.refresh_from_db()
        assert (node.team, spec.team) == (teams[1], 0)

    def test_an_agent_that_isolates_jobs_is_told_the_team(self, teams: tuple[Team, Team]) -> None:
        node = a_node_with_agent(features=NOT_ALONE[0])
        offer = an_offer(node, a_job(node.cluster, team=teams[1]))
        assert accept(node.pk, offer.pk, Accept(node.epoch, offer.fence)).team == teams[1].pk


def test_a_profiling_node_of_another_team_measures_nothing_for_a_job(
    cluster: Cluster, teams: tuple[Team, Team]
) -> None:
    a_node(cluster, features=ALONE, team=teams[0], role="profiling")
    jobs = [a_new_job(cluster, team=team) for team in teams]
    found = offers(cluster, at(0)).now
    assert [bool(reachable(job, found)) for job in jobs] == [True, False]


@pytest.mark.parametrize(
    ("features", "isolation", "words"),
    [
        (ALONE, "one_team", "serves one team, as jobs are not isolated"),
        (NOT_ALONE[0], "isolated", ""),
        (NOT_ALONE[1], "shared", "all teams share it without isolation"),
        (NOT_ALONE[2], "isolated", ""),
        ([], "", ""),
    ],
)
def test_rest_and_page_say_how_teams_are_kept_apart(
    cluster: Cluster, client: Client, features: list[str], isolation: str, words: str
) -> None:
    a_node(cluster, features=features)
    user = a_user()
    (node,) = api(user).get("/api/v1/nodes/").data["results"]
    assert node["isolation"] == isolation
    client.force_login(user)
    page = client.get("/nodes/").content.decode()
    assert words in page
    assert words or ("one team" not in page and "without isolation" not in page)


LIMITED = ["cores_limit", "memory_limit", "processes_limit"]


@pytest.mark.parametrize(
    ("features", "limits", "words"),
    [
        (["process", *LIMITED], ("memory", "processes", "cores"), ""),
        (["process", "memory_limit"], ("memory",), "does not limit jobs' processes, cores"),
        (["process"], (), "does not limit jobs' memory, processes, cores"),
        (["docker"], None, ""),
        ([], None, ""),
    ],
    ids=["all", "memory alone", "older processes", "older containers", "no agent"],
)
def test_rest_and_page_say_what_the_kernel_limits(
    cluster: Cluster,
    client: Client,
    features: list[str],
    limits: tuple[str, ...] | None,
    words: str,
) -> None:
    a_node(cluster, features=features)
    user = a_user()
    (node,) = api(user).get("/api/v1/nodes/").data["results"]
    assert node["limits"] == (None if limits is None else [*limits])
    client.force_login(user)
    page = client.get("/nodes/").content.decode()
    assert words in page
    assert words or "does not limit" not in page
