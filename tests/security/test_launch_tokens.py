"""Tokens of launches: a script reaches its user's own jobs of its team, while it runs."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from controlplane.execution.services.assignments import launch_spec
from jobs import services
from jobs.launch_tokens import launch_of, launch_token
from jobs.models import Assignment, Dependency, Job, Membership, UsagePoint
from loadmaster.features import features_with
from loadmaster.protocol import AssignmentState
from loadmaster.wire import to_json
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_agents import a_node_with_agent, an_offer
from tests.builders_jobs import a_token, api

pytestmark = pytest.mark.django_db
JOBS = "/api/v1/script/jobs/"
NODES = "/api/v1/script/nodes/"
SCRIPT = "#!/bin/sh\ntrue\n"


class Scene:
    """A script of Ada's that runs, another job of hers, and jobs that are not hers."""

    def __init__(self) -> None:
        self.cluster = a_cluster(name="lab")
        self.node = a_node_with_agent(self.cluster, name="n1", cores=8)
        self.node.features = list(features_with("process"))
        self.node.save(update_fields=["features"])
        self.team = a_team("research")
        self.ada = a_user("ada", team=self.team)
        self.mate = a_user("bob", team=self.team)
        self.running = self.job(self.ada, script=SCRIPT)
        self.launch = an_offer(self.node, self.running, gpus=0)
        self.client = api(token=launch_token(self.launch))

    def job(self, user: User, **values: Any) -> Job:
        team = values.pop("team", self.team)
        return a_job(self.cluster, user=user, team=team, batch=True, gpus_min=0, gpus_max=0,
                     **values)  # fmt: skip


@pytest.fixture
def scene() -> Scene:
    return Scene()


def numbers(answer: Any) -> set[int]:
    return {row["number"] for row in answer.json()["jobs"]}


def test_a_script_sees_its_users_jobs_of_its_team_alone(scene: Scene) -> None:
    own = scene.job(scene.ada)
    scene.job(scene.mate)
    other_team = a_team("other")
    Membership.objects.create(team=other_team, user=scene.ada)
    scene.job(scene.ada, team=other_team)
    assert numbers(scene.client.get(JOBS)) == {scene.running.number, own.number}


@pytest.mark.parametrize("verb", ["cancel", "hold", "release", "requeue"])
def test_a_script_changes_no_job_of_others(scene: Scene, verb: str) -> None:
    others = scene.job(scene.mate, state="held")
    answer = scene.client.post(f"{JOBS}{others.number}/{verb}/")
    assert answer.status_code == 404
    others.refresh_from_db()
    assert others.state == "held"


def test_an_operators_script_sees_and_changes_no_more(scene: Scene) -> None:
    User.objects.filter(pk=scene.ada.pk).update(is_staff=True, is_superuser=True)
    others = scene.job(scene.mate)
    assert numbers(scene.client.get(JOBS)) == {scene.running.number}
    assert scene.client.get(JOBS, {"numbers": str(others.number)}).json() == {"jobs": []}
    assert scene.client.post(f"{JOBS}{others.number}/cancel/").status_code == 404


def test_a_launchs_token_ends_with_its_launch(scene: Scene) -> None:
    assert scene.client.get(JOBS).status_code == 200
    Assignment.objects.filter(pk=scene.launch.pk).update(state=AssignmentState.SUCCEEDED)
    assert scene.client.get(JOBS).status_code == 401


def test_a_token_of_an_earlier_launch_is_not_that_of_the_next(scene: Scene) -> None:
    earlier = launch_token(scene.launch)
    Assignment.objects.filter(pk=scene.launch.pk).update(fence=scene.launch.fence + 1)
    assert launch_of(earlier) is None


def test_a_closed_account_and_a_member_who_left_have_no_script_any_more(scene: Scene) -> None:
    Membership.objects.filter(user=scene.ada).delete()
    assert numbers(scene.client.get(JOBS)) == set()
    User.objects.filter(pk=scene.ada.pk).update(is_active=False)
    assert scene.client.get(JOBS).status_code == 401


@pytest.mark.parametrize(
    "path",
    ["/api/v1/jobs/", "/api/v1/me/", "/api/v1/tokens/", "/api/v1/teams/research/secrets/"],
)
def test_a_launchs_token_opens_nothing_else(scene: Scene, path: str) -> None:
    assert scene.client.get(path).status_code == 401
    assert scene.client.put(path, {}, format="json").status_code == 401


def test_no_other_token_opens_the_addresses_of_scripts(scene: Scene) -> None:
    token = launch_token(scene.launch)
    wrong = [token[:-1], token[:-1] + ("0" if token[-1] != "0" else "1"), "launch..", "x"]
    for each in [*wrong, a_token(scene.ada)]:
        assert api(token=each).get(JOBS).status_code == 401, each
        assert api(token=each).get(NODES).status_code == 401, each
        assert api(token=each).post(f"{JOBS}1/cancel/").status_code == 401
    assert api().get(JOBS).status_code == 401


def test_a_script_cancels_holds_and_releases_own_jobs_by_number(scene: Scene) -> None:
    own = scene.job(scene.ada)
    for verb, state in (("hold", "held"), ("release", "queued"), ("cancel", "cancelled")):
        assert scene.client.post(f"{JOBS}{own.number}/{verb}/").status_code == 200
        own.refresh_from_db()
        assert own.state == state
    assert scene.client.post(f"{JOBS}{own.number}/release/").status_code == 409
    assert scene.client.post(f"{JOBS}{own.number}/delete/").status_code == 404


def test_a_script_lists_ended_jobs_of_its_user_since_a_moment(scene: Scene) -> None:
    now = timezone.now()
    old, new, others = (scene.job(user, state="completed")
                        for user in (scene.ada, scene.ada, scene.mate))  # fmt: skip
    ended = {old: now - timedelta(days=2), new: now, others: now}
    for job, moment in ended.items():
        Job.objects.filter(pk=job.pk).update(completed_at=moment)
    assert numbers(scene.client.get(JOBS)) == {scene.running.number}
    since = {"since_s": (now - timedelta(days=1)).timestamp()}
    assert numbers(scene.client.get(JOBS, since)) == {scene.running.number, new.number}
    for wrong in ("yesterday", "nan", "1e99"):
        answer = scene.client.get(JOBS, {"since_s": wrong})
        assert answer.status_code == 400
        assert "must be seconds since 1970" in answer.json()["error"]["fields"]["since_s"][0]


def test_a_script_sees_what_its_jobs_wait_for_and_how_they_ended(scene: Scene) -> None:
    waiting = scene.job(scene.ada)
    ended = scene.job(scene.ada, state="failed", started_at=timezone.now(), fence=1)
    delay = timedelta(minutes=5)
    Dependency.objects.create(job=waiting, on=scene.running, condition="after", delay=delay)
    Assignment.objects.filter(pk=scene.launch.pk).update(job=ended, fence=1, exit_code=3,
                                                         reason_class="oom")  # fmt: skip
    launch = an_offer(scene.node, scene.running, gpus=0)
    UsagePoint.objects.create(assignment=scene.launch, at=timezone.now(), cores=1.0,
                              memory_gb=2.5, power_source="measured")  # fmt: skip
    client = api(token=launch_token(launch))
    asked = {"numbers": f"{waiting.number},{ended.number}"}
    first, second = client.get(JOBS, asked).json()["jobs"]
    assert first["dependencies"] == [f"after:{scene.running.number}+5"]
    assert (second["exit_code"], second["blame"], second["ran_on"]) == (3, "oom", ["n1"])
    assert second["peak_memory_gb"] is None
    measured = client.get(JOBS, {**asked, "usage": "memory"}).json()["jobs"]
    assert measured[1]["peak_memory_gb"] == 2.5


def test_a_script_sees_the_nodes_of_its_cluster_without_their_jobs(scene: Scene) -> None:
    elsewhere = a_cluster(name="annex")
    a_node(elsewhere, name="far")
    a_node(scene.cluster, name="n2", gpus=2, labels=["fast"], state="cordoned", reason="fan")
    scene.job(scene.mate, name="secret")
    answer = scene.client.get(NODES)
    assert "secret" not in answer.content.decode()
    first, second = answer.json()["nodes"]
    assert (first["name"], first["cluster"], first["cores"], first["used_cores"]) == (
        "n1", "lab", 8.0, 1.0,
    )  # fmt: skip
    assert (second["gpus"], second["gpu_type"], second["state"]) == (2, "V100", "cordoned")
    assert (second["labels"], second["reason"]) == (["fast"], "fan")


def test_a_node_for_one_job_alone_is_in_use_as_a_whole(scene: Scene) -> None:
    Job.objects.filter(pk=scene.running.pk).update(exclusive=True)
    (node,) = scene.client.get(NODES).json()["nodes"]
    assert node["used_cores"] == node["cores"]


def test_a_script_submits_to_its_own_team_and_cluster(scene: Scene) -> None:
    other = a_team("other")
    Membership.objects.create(team=other, user=scene.ada)
    body = {"sbatch": {"script": SCRIPT, "options": ["-J", "next", "-a", "0-1"]}}
    answer = scene.client.post(JOBS, body, format="json")
    assert answer.status_code == 201, answer.content
    jobs = Job.objects.filter(name="next")
    assert {(job.team, job.user) for job in jobs} == {(scene.team, scene.ada)}
    assert jobs[0].array is not None
    assert answer.json()["number"] == jobs[0].array.number
    wrong_bodies: list[Any] = [{}, {"sbatch": {}, "team": "other"}, {"command": "x"}, []]
    for wrong in wrong_bodies:
        assert scene.client.post(JOBS, wrong, format="json").status_code == 400


def test_an_array_and_its_elements_are_reached_by_number(scene: Scene) -> None:
    data = {"name": "many", "command": "x", "array": "3-5", "team": "research", "gpus": 0}
    array = services.job_submit(scene.ada, data).job.array
    assert array is not None
    found = scene.client.get(JOBS, {"numbers": str(array.number)})
    assert [row["index"] for row in found.json()["jobs"]] == [3, 4, 5]
    assert scene.client.post(f"{JOBS}{array.number}_4/cancel/").json() == {"changed": 1}
    assert scene.client.post(f"{JOBS}{array.number}_9/cancel/").status_code == 404
    assert scene.client.post(f"{JOBS}{array.number}/cancel/").json() == {"changed": 2}


def test_requeue_stops_a_running_job_and_queues_it_again(scene: Scene) -> None:
    Job.objects.filter(pk=scene.running.pk).update(state="running")
    Assignment.objects.filter(pk=scene.launch.pk).update(state=AssignmentState.RUNNING)
    assert scene.client.post(f"{JOBS}{scene.running.number}/requeue/").status_code == 200
    scene.running.refresh_from_db()
    assert (scene.running.state, scene.running.hold_wanted) == ("stopping", False)


def test_only_scripts_on_agents_that_know_of_it_get_a_token(scene: Scene) -> None:
    assert launch_spec(scene.launch).script_token == launch_token(scene.launch)
    assert "token" not in repr(launch_spec(scene.launch))
    plain = an_offer(scene.node, scene.job(scene.ada), gpus=0)
    assert launch_spec(plain).script_token == ""
    scene.node.features = ["process", "batch"]
    scene.node.save(update_fields=["features"])
    scene.launch.node.refresh_from_db()
    assert "script_token" not in to_json(launch_spec(scene.launch))


def test_each_launch_is_known_by_its_own_token(scene: Scene) -> None:
    another = an_offer(scene.node, scene.job(scene.ada, script=SCRIPT), gpus=0)
    for launch in (scene.launch, another):
        assert launch_of(launch_token(launch)) == launch
