"""Bad batch jobs by REST: each is refused with its field, what is wrong, and a remedy."""

import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from clusters.models import Cluster
from jobs.models import Job, JobArray, Team
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_jobs import api

pytestmark = pytest.mark.django_db

JOBS = "/api/v1/jobs/"
SHELL = "#!/bin/sh\n"


@pytest.fixture
def cluster() -> Cluster:
    """Two nodes, of 16 and 8 cores."""
    cluster = a_cluster(name="lab", grace_s=30.0)
    a_node(cluster, gpus=0, cores=16, memory_gb=64)
    a_node(cluster, gpus=0, cores=8, memory_gb=32)
    return cluster


@pytest.fixture
def user(cluster: Cluster) -> User:
    return a_user("ada", team=a_team("vision"))


@pytest.fixture
def client(user: User) -> APIClient:
    return api(user)


def asked(client: APIClient, **fields: Any) -> Any:
    how = {} if {"sbatch", "script"} & set(fields) else {"command": ["true"]}
    return client.post(JOBS, {"name": "x", **how, **fields}, format="json")


def refused(client: APIClient, **fields: Any) -> dict[str, list[str]]:
    answer = asked(client, **fields)
    assert answer.status_code == 400, answer.content
    assert not Job.objects.filter(name="x").exists()
    found: dict[str, list[str]] = answer.json()["error"]["fields"]
    return found


ARRAYS = [
    ("%2", "has no indices; write indices such as 0-9"),
    ([], "must be text, not a list; write indices such as"),
    ("0-10000", "has 10001 elements; at most 10000, so submit several arrays"),
    ("0-9%0", "must be at least 1"),
]
WALLTIMES = [
    (0, "must be above 0"), ("0s", "must be above 0"), (-5, "must be above 0"),
    ("soon", "must be seconds or a duration such as 90s"), (1e300, "must be above 0 up to"),
]  # fmt: skip
UNITS = [
    ({"units": 0}, "units", "must be from 1 to 100000, not 0"),
    ({"units": 25}, "units", "hold at most 24 such units together, not 25; ask for fewer"),
    ({"units": 2, "cores": 17}, "cores", "has 17 cores for a unit; the largest has 16"),
    ({"units": 2, "gpus": 2}, "gpus", "can serve 1 GPU for a unit; the largest"),
    ({"units": 3, "nodes": 3}, "nodes", "only 2 nodes of lab could hold a unit, not 3"),
]
RESOURCES = [
    ({"mic": -1}, "mic must be from 0 to"), ({"mic": "2"}, "mic must be a number from 0 to"),
    ({"cores": 1}, "'cores' is no name of a resource"), ([1], "must be an object such as"),
    ({"mic": 1e30}, "mic must be from 0 to"),
]  # fmt: skip
SCRIPTS = [
    (SHELL.replace("\n", "\r\n"), "line 1: ends with CR and LF; run dos2unix on the script"),
    ("true\n", "line 1: a script begins with #! and its interpreter"),
    (SHELL + "x" * 262_144, "may have 262144; put data and programs into files"),
    ("", "the script is empty"), (SHELL + "\0", "line 2: has a NUL character"),
]  # fmt: skip


@pytest.mark.parametrize(("array", "words"), ARRAYS)
def test_an_array_that_is_none_is_refused(client: APIClient, array: Any, words: str) -> None:
    (message,) = refused(client, array=array)["array"]
    assert words in message


@pytest.mark.parametrize(("walltime", "words"), WALLTIMES)
def test_a_walltime_that_is_none_is_refused(client: APIClient, walltime: Any, words: str) -> None:
    (message,) = refused(client, walltime=walltime)["walltime"]
    assert words in message


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        ({"walltime": 29}, True), ({"walltime": 30}, False), ({}, False),
        ({"walltime": 29, "on_walltime": "warn"}, False), ({"walltime": 29, "steps": 5}, False),
    ],
)  # fmt: skip
def test_a_walltime_below_the_grace_is_warned_of_where_it_kills(
    client: APIClient, fields: dict[str, Any], warned: bool
) -> None:
    a_node(Cluster.objects.get(), gpus=1, cores=4)
    answer = asked(client, **fields)
    assert answer.status_code == 201, answer.content
    said = "walltime: is below the grace of 30 s after SIGTERM"
    assert any(text.startswith(said) for text in answer.json()["warnings"]) is warned


@pytest.mark.parametrize(("fields", "field", "words"), UNITS)
def test_units_that_no_nodes_can_hold_are_refused(
    client: APIClient, fields: dict[str, Any], field: str, words: str
) -> None:
    (message,) = refused(client, **fields)[field]
    assert words in message


@pytest.mark.parametrize(("resources", "words"), RESOURCES)
def test_amounts_that_are_none_are_refused(client: APIClient, resources: Any, words: str) -> None:
    (message,) = refused(client, resources=resources)["resources"]
    assert words in message


def test_an_amount_of_0_asks_for_nothing_and_one_that_nobody_offers_is_warned_of(
    client: APIClient,
) -> None:
    assert asked(client, resources={"mic": 0}).json()["warnings"] == []
    assert Job.objects.get().resources == {}
    (warning,) = asked(client, resources={"mic": 2}).json()["warnings"]
    assert warning.startswith("resources: no node that fits has 2 mic yet")


@pytest.mark.parametrize(("text", "words"), SCRIPTS)
def test_a_text_that_is_no_script_is_refused(client: APIClient, text: str, words: str) -> None:
    assert words in refused(client, sbatch={"script": text})["sbatch"][0]
    assert words in refused(client, script=text or " ")["script"][0]


def test_an_option_given_twice_is_warned_of_and_the_last_one_holds(client: APIClient) -> None:
    answer = asked(client, sbatch={"script": f"{SHELL}#SBATCH -n 2\n#SBATCH -n 3\n"})
    (warning,) = answer.json()["warnings"]
    assert warning == "line 3: --ntasks: replaces the value of line 2; remove one of them"
    assert Job.objects.get().units == 3


OVER = [
    ("failed", "afterok", "job {id} is failed, so afterok can never be satisfied; requeue it"),
    ("cancelled", "afterok", "job {id} is cancelled, so afterok can never be satisfied"),
    ("completed", "afternotok", "job {id} is completed, so afternotok can never be satisfied"),
]


@pytest.mark.parametrize(("state", "condition", "words"), OVER)
def test_a_dependency_on_a_job_that_is_over_is_refused_where_it_cannot_be_satisfied(
    client: APIClient, user: User, state: str, condition: str, words: str
) -> None:
    job = a_job(Cluster.objects.get(), team=user.teams.get(), user=user, state=state)
    (message,) = refused(client, dependencies=[f"{condition}:{job.pk}"])["dependencies"]
    assert words.format(id=job.pk) in message


def test_a_clone_that_waits_for_its_job_does_not_wait_for_itself(
    client: APIClient, user: User
) -> None:
    job = a_job(Cluster.objects.get(), team=user.teams.get(), batch=True, gpus_min=0, gpus_max=0)
    answer = client.post(f"{JOBS}{job.pk}/clone/", {"dependencies": [str(job.pk)]}, format="json")
    assert answer.json()["spec"]["dependencies"] == [str(job.pk)] != [answer.json()["id"]]


def _id(job: Job) -> str:
    return str(job.pk)


def _number(job: Job) -> str:
    return str(job.number)


def _array_number(job: Job) -> int:
    assert job.array is not None
    return job.array.number


REFERENCES: list[Callable[[Job], str]] = [
    _id, _number, lambda job: f"afterany:{job.pk}", lambda job: f"{job.array_id}",
    lambda job: f"{job.array_id}_0", lambda job: f"aftercorr:{job.array_id}",
    lambda job: f"{_array_number(job)}",
]  # fmt: skip


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_dependency_on_what_a_stranger_may_not_see_reads_like_one_on_nothing(
    client: APIClient, reference: Callable[[Job], str]
) -> None:
    """By REST, in bulk, by a script and by a clone."""
    cluster = Cluster.objects.get()
    array = JobArray.objects.create(indices="0", size=1, lowest=0, highest=0)
    hidden = a_job(cluster, name="secret", array=array, array_index=0, state="failed")
    nothing = Job(pk=uuid4(), array=JobArray(pk=uuid4()), array_index=0)
    own = a_job(cluster, team=Team.objects.get(name="vision"))

    def told(job: Job) -> list[str]:
        text = reference(job)
        body = {"name": "x", "command": ["true"], "dependencies": [text], "array": "0-1"}
        bulk = client.post(f"{JOBS}bulk/", {"jobs": [{"job": body}]}, format="json")
        clone = client.post(f"{JOBS}{own.pk}/clone/", {"dependencies": [text]}, format="json")
        condition = text if ":" in text else f"afterok:{text}"
        script = {"script": SHELL, "options": [f"--dependency={condition}", "--array=0-1"]}
        answers = [asked(client, **body), bulk, clone, asked(client, sbatch=script)]
        shown = [answer.content.decode() for answer in answers]
        for own_name in (_id(job), _number(job), str(job.array_id), str(_array_number(job))):
            name = re.compile(rf"\b{re.escape(own_name)}\b")
            shown = [name.sub("ID", text) for text in shown]
        return [f"{a.status_code} {s}" for a, s in zip(answers, shown, strict=True)]

    found = told(hidden)
    assert found == told(nothing)
    assert all("there is no job or array ID that you can see" in text for text in found)
    assert not Job.objects.filter(name="x").exists()
