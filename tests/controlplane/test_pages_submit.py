"""The form of a submission: the same validation as every other way in."""

from html import escape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from clusters.models import Cluster
from jobs.kinds import digest, kinds_for
from jobs.models import Job, JobArray, Team
from jobs.pages.forms import initial_of
from tests.builders import a_cluster, a_job, a_node, a_team, a_user

pytestmark = pytest.mark.django_db

MERGES = "\n".join(
    [
        "a0: &a0 {k: v}",
        *(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 10)),
    ]
)
"""Half a kilobyte whose merged names would take 7 GB."""


@pytest.fixture(name="team")
def _team() -> Team:
    return a_team("vision")


@pytest.fixture(name="ada")
def _ada(team: Team, client: Client) -> User:
    user = a_user("ada", team=team)
    client.force_login(user)
    return user


@pytest.fixture(name="cluster")
def _cluster() -> Cluster:
    cluster = a_cluster(name="demo")
    a_node(cluster, gpus=2)
    return cluster


def typed(**values: str) -> dict[str, Any]:
    common = {
        "name": "first", "team": "vision", "cluster": "demo", "runtime": "process",
        "command": "python train.py --epochs 3",
        "epochs": "2", "steps_per_epoch": "50", "gpus_min": "1", "gpus_max": "1", "cores": "1",
        "memory_gb": "0.5",
        "on_disconnect": "stop",
    }  # fmt: skip
    return {**common, **values}


def test_a_job_is_taken_and_its_page_is_shown(client: Client, ada: User, cluster: Cluster) -> None:
    values = typed(
        environment="MODE=fast\nDEPTH=3=x", labels="", due="+2h", priority="5", allowed_types="V100"
    )
    answer = client.post("/submit/", values, follow=True)
    job = Job.objects.get()
    assert answer.redirect_chain == [(f"/jobs/{job.pk}/", 302)]
    assert "first is submitted" in answer.content.decode()
    assert job.command == ["python", "train.py", "--epochs", "3"]
    assert job.environment == {"MODE": "fast", "DEPTH": "3=x"}
    assert (job.total_steps, job.priority, job.allowed_types, job.memory_gb) == (
        100,
        5,
        ["V100"],
        0.5,
    )
    assert job.due_at is not None


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "", "is missing"),
        ("steps_per_epoch", "many", "must be a whole number"),
        ("gpus_max", "-3", "must be from 0"),
        ("cores", "nan", "must be a finite number"),
        ("command", "python 'unclosed", "cannot be split"),
        ("due", "tomorrow-ish", "must be a time"),
        ("environment", "no equals sign", "is no variable name"),
        ("mounts", "/only-one", "write &quot;/source:/target&quot;"),
        ("gpus_min", "64", "2"),
        ("team", "somebody-elses", "somebody-elses"),
        ("array", "5-1", "5-1 runs backwards; write 1-5"),
        ("array", "0-9%0", "at a time must be at least 1"),
        ("array", "0-99999", "has 100000 elements; at most 10000"),
        ("dependencies", "before:7", "must be a list of ids of jobs"),
        ("begin", "soon", "must be a time"),
        ("signal", "USR3", "is no signal; write [B:]SIGNAL"),
    ],
)
def test_what_is_wrong_stands_beside_its_field(
    client: Client, ada: User, cluster: Cluster, field: str, value: str, message: str
) -> None:
    values = typed(**{field: value}, **({"gpus_max": "64"} if field == "gpus_min" else {}))
    answer = client.post("/submit/", values)
    assert answer.status_code == 422
    page = answer.content.decode()
    error = page.partition(f'id="id_{field}_error"')[2].partition("</div></div>")[0]
    assert message in error
    assert not Job.objects.exists()


def a_typed_batch_job(**values: str) -> dict[str, Any]:
    without = {"steps_per_epoch": "", "gpus_min": "0", "gpus_max": "0"}
    return typed(**{**without, "units": "3", "nodes": "", "units_per_node": "3", **values})


def test_the_form_takes_the_units_of_a_batch_job_and_repeats_them(
    client: Client, ada: User, cluster: Cluster
) -> None:
    client.post("/submit/", a_typed_batch_job(processes="each"))
    job = Job.objects.get()
    assert (job.units, job.units_per_node, job.nodes, job.processes) == (3, 3, 0, "each")
    assert initial_of(job)["units"] == 3
    assert 'name="units"' in client.get("/submit/").content.decode()


def test_the_form_takes_an_array_and_what_its_elements_wait_for(
    client: Client, ada: User, cluster: Cluster
) -> None:
    first = a_job(cluster, name="before", team=Team.objects.get(), user=ada)
    values = a_typed_batch_job(array=" 0-8:2%2 ", dependencies=f"{first.pk}, ", begin="+1h")
    answer = client.post("/submit/", {**values, "walltime": "1h", "signal": "B:USR1"})
    array = JobArray.objects.get()
    assert answer.headers["Location"] == f"/arrays/{array.pk}/"
    assert (array.indices, array.at_once, array.size) == ("0-8:2", 2, 5)
    element = array.jobs.get(array_index=4)
    assert [link.on for link in element.dependency_links.all()] == [first]
    assert (element.signal, element.begin_at is None) == ("B:USR1@60", False)
    again = initial_of(element)
    assert (again["dependencies"], again["signal"]) == (str(first.pk), "B:USR1@60")
    assert "array" not in again


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        ({"units": "0"}, "units", "must be from 1"),
        ({"units": "100"}, "units", "such units together, not 100"),
        ({"nodes": "4"}, "nodes", "need as many units"),
        ({"steps_per_epoch": "5"}, "units", "is for batch jobs"),
    ],
)
def test_units_that_cannot_be_are_named_beside_their_field(
    client: Client, ada: User, cluster: Cluster, values: dict[str, str], field: str, message: str
) -> None:
    page = client.post("/submit/", a_typed_batch_job(**values)).content.decode()
    assert message in page.partition(f'id="id_{field}_error"')[2].partition("</div></div>")[0]
    assert not Job.objects.exists()


def test_what_was_typed_is_still_there_after_a_refusal(
    client: Client, ada: User, cluster: Cluster
) -> None:
    page = client.post("/submit/", typed(name="kept", cores="minus one")).content.decode()
    assert 'value="kept"' in page
    assert 'value="minus one"' in page


def test_warnings_are_shown_and_the_job_is_taken(
    client: Client, ada: User, cluster: Cluster
) -> None:
    page = client.post("/submit/", typed(due="2020-01-01T00:00"), follow=True).content.decode()
    assert "is in the past" in page or "within 20 years" in page
    assert Job.objects.count() == 1


def test_a_pasted_yaml_is_taken_in_place_of_the_form(
    client: Client, ada: User, cluster: Cluster
) -> None:
    pasted = (
        "name: from yaml\nteam: vision\ncluster: demo\ncommand: [python, train.py]\nsteps:"
        " 70\ngpus: 1..2\n"
    )
    answer = client.post("/submit/", {"yaml": pasted, "name": "ignored"})
    assert answer.status_code == 302
    job = Job.objects.get()
    assert (job.name, job.total_steps, job.gpus_max) == ("from yaml", 70, 2)


@pytest.mark.parametrize(
    ("pasted", "message"),
    [
        ("name: [unclosed", "line 1"),
        ("just words", "must be an object"),
        (
            "name: x\nteam: vision\ncluster: demo\nsteps: 5\ncommand: run\nspeed: 9\n",
            "speed: is no field of a job",
        ),
        ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("due: 2020-13-45", "month must be in 1..12"),
        ("[" * 5000, "is nested too deeply"),
        (MERGES, "line 1: anchors and aliases are not taken here"),
    ],
)
def test_a_pasted_yaml_that_does_not_do_says_so(
    client: Client, ada: User, cluster: Cluster, pasted: str, message: str
) -> None:
    answer = client.post("/submit/", {"yaml": pasted})
    assert answer.status_code == 422
    page = answer.content.decode()
    assert message in page.partition('id="yaml_error"')[2]
    assert escape(pasted.splitlines()[0]) in page


def test_a_clone_begins_with_what_the_first_one_was(
    client: Client, ada: User, team: Team, cluster: Cluster
) -> None:
    source = a_job(
        cluster, team=team, user=ada, name="the first", command=["sh", "-c", "echo 'a b'"],
        environment={"A": "1", "KEY": {"secret": "s3"}},
        kind=kinds_for({(team.pk, digest("resnet")): "resnet"})[team.pk, digest("resnet")],
        steps_per_epoch=100,
    )  # fmt: skip
    page = client.get(f"/submit/?from={source.pk}").content.decode()
    for words in ('value="the first"', "KEY=secret:s3", 'value="resnet"', "A clone of"):
        assert words in page
    answer = client.post(f"/submit/?from={source.pk}", typed(name="the second"))
    assert answer.status_code == 302
    assert Job.objects.get(name="the second").cloned_from == source


def test_a_clone_keeps_its_command_word_by_word(
    client: Client, ada: User, team: Team, cluster: Cluster
) -> None:
    words = ["python", "-c", "print('x y')", "--flag=a b"]
    source = a_job(cluster, team=team, user=ada, command=words)
    client.post("/submit/", typed(command=initial_of(source)["command"]))
    assert Job.objects.get(name="first").command == words
