"""How containers end, from a round's placement to what people read: real agents, a real Engine, the
real server.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from jobs.models import Assignment, AssignmentSlot, Job
from loadmaster.protocol import AssignmentState
from tests.builders import a_cluster, a_gpu_type, a_team, a_user
from tests.builders_agent_site import is_state
from tests.builders_agents import reconcile_clusters
from tests.builders_docker import python3, sh
from tests.builders_docker_site import LIBRARY, STUBBORN, TRAINER, DockerSite, a_docker_job, runs
from tests.builders_jobs import api
from tests.builders_live import a_round

S = AssignmentState
pytestmark = [pytest.mark.docker, pytest.mark.django_db, pytest.mark.timeout(240)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DockerSite]:
    a_gpu_type("V100")
    site = DockerSite(tmp_path, a_cluster(heartbeat_s=0.5, lease_s=30.0, grace_s=2.0, margin_s=3.0))
    yield site
    site.close()


@pytest.fixture
def user() -> User:
    return a_user("ada", team=a_team("research"))


def a_job_of(user: User, site: DockerSite, **values: Any) -> Job:
    return a_docker_job(
        site.cluster, **{"user": user, "team": user.teams.get(), "max_retries": 0, **values}
    )


def placed(site: DockerSite, job: Job) -> Assignment:
    """The job's launch by a round, once both nodes are there; a job that rests has rested."""
    Job.objects.filter(pk=job.pk).update(retry_at=None)
    site.until(lambda: all(node.agent.is_idle for node in site.nodes))
    a_round(site.cluster)
    return job.assignments.get(ended_at=None)


def ended(site: DockerSite, assignment: Assignment) -> Job:
    site.until(lambda: is_state(assignment, S.FAILED))
    return Job.objects.get(pk=assignment.job_id)


def shown(user: User, job: Job) -> Any:
    return api(user).get(f"/api/v1/jobs/{job.pk}/").data


def test_an_image_that_cannot_be_pulled_spares_retries_and_is_tried_on_the_other_node(
    user: User, site: DockerSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmaster.agent.runtimes.docker.preparing.PULL_PAUSE_S", 0.0)
    job = a_job_of(user, site, image="registry.invalid/no/such:1")
    first = placed(site, job)
    job = ended(site, first)
    assert (job.state, job.retries_used) == ("queued", 0)
    assert job.retry_at is not None
    # It rests for seconds, which may be over before a busy machine has come to the round.
    Job.objects.filter(pk=job.pk).update(retry_at=job.retry_at + timedelta(hours=1))
    a_round(site.cluster)
    waiting = shown(user, job)["waiting"]
    assert waiting["code"] == "resting"
    (failure,) = [of["text"] for of in waiting["facts"] if of["heading"] == "Last failure"]
    assert "registry.invalid/no/such:1 cannot be pulled" in failure
    assert placed(site, job).node_id != first.node_id


def test_a_job_that_is_out_of_memory_says_what_it_asked_for_and_what_to_do(
    user: User, site: DockerSite
) -> None:
    job = a_job_of(
        user, site, memory_gb=0.1, command=list(python3("x = b'x' * 400_000_000; print(len(x))"))
    )
    job = ended(site, placed(site, job))
    assert job.state == "failed"
    assert "it asked for 0.1 GB of memory; raise memory_gb" in shown(user, job)["failure_reason"]


def test_a_crash_uses_a_retry_and_then_fails_the_job_with_its_last_words(
    user: User, site: DockerSite
) -> None:
    job = a_job_of(user, site, max_retries=1, command=list(sh("echo no such digit >&2; exit 3")))
    job = ended(site, placed(site, job))
    assert (job.state, job.retries_used) == ("queued", 1)
    job = ended(site, placed(site, job))
    assert (job.state, job.retries_used) == ("failed", 1)
    told = shown(user, job)
    assert told["failure_reason"] == "failed (user): the job ended with exit code 3: no such digit"
    attempts = api(user).get(f"/api/v1/jobs/{job.pk}/attempts/").data["results"]
    assert {(a["outcome"], a["reason_class"]) for a in attempts} == {("failed", "user")}


def test_a_cancelled_job_that_ignores_sigterm_frees_its_gpu_only_when_its_container_is_gone(
    user: User, site: DockerSite
) -> None:
    job = a_job_of(user, site, command=list(STUBBORN))
    assignment = placed(site, job)
    site.until(lambda: is_state(assignment, S.RUNNING) and runs(assignment.container))
    assert api(user).post(f"/api/v1/jobs/{job.pk}/cancel/").data["state"] == "cancelling"
    seen: list[tuple[str, bool, bool]] = []

    def is_over() -> bool:
        state = shown(user, job)["state"]
        held = AssignmentSlot.objects.filter(assignment=assignment, live=True).exists()
        seen.append((state, held, runs(assignment.container)))
        return bool(state == "cancelled")

    site.until(is_over)
    assert seen[0] == ("cancelling", True, True)
    assert seen[-1] == ("cancelled", False, False)
    assert not [
        state for state, held, runs_on in seen if runs_on and not (held and state == "cancelling")
    ]


def test_a_drained_nodes_job_goes_on_in_a_container_of_another_agent_from_its_checkpoint(
    user: User, site: DockerSite
) -> None:
    job = a_job_of(user, site, command=list(TRAINER), mounts=[LIBRARY], total_steps=60)
    first = placed(site, job)
    site.until(lambda: is_state(first, S.RUNNING) and first.steps_done > 5)
    drain = {"until": timezone.now().isoformat(), "reason": "new power supply"}
    operator = a_user("oskar", operator=True)
    assert (
        api(operator)
        .post(f"/api/v1/nodes/{first.node_id}/drain/", drain, format="json")
        .status_code
        == 200
    )
    reconcile_clusters()
    site.until(lambda: is_state(first, S.PREEMPTED))
    a_round(site.cluster)
    second = job.assignments.get(ended_at=None)
    site.until(lambda: is_state(second, S.SUCCEEDED))
    assert second.node_id != first.node_id
    assert second.container != first.container
    assert second.start_steps == first.steps_done > 5
    told = shown(user, job)
    assert (told["state"], told["retries_used"]) == ("completed", 0)
    events = api(user).get(f"/api/v1/jobs/{job.pk}/events/").data["results"]
    why = f"node {first.node.name} is drained: new power supply"
    assert [e["data"]["why"] for e in events if e["event"] == "preempt"] == [why]
