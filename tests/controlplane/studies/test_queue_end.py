"""What-if to the end of the queue: asked by page and REST, run by workers, shown, applied."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from pytest_django import Settings

from clusters.models import Cluster, RescheduleEvent
from controlplane.simulation.choices import Choice, compare, with_value_of_time
from controlplane.studies.models import Simulation
from controlplane.studies.running.folders import read_file
from controlplane.studies.running.runner import run_next
from controlplane.studies.what_if.queue_end import queue_end_create
from jobs.models import Job
from policies.contract.views import waiting_cost
from tests.builders import a_cluster, a_team, a_user
from tests.builders_jobs import api
from tests.builders_pages import Demo, a_busy_cluster
from tests.builders_policies import a_job as a_job_view
from tests.builders_policies import a_snapshot

pytestmark = pytest.mark.django_db
END = "/api/v1/clusters/demo/what-if/end/"


@pytest.fixture(name="demo")
def _demo(settings: Settings, tmp_path: Path) -> Demo:
    settings.SIMULATIONS_DIR = tmp_path / "simulations"
    settings.SIMULATION_PROCESSES = 2
    return a_busy_cluster()


def logged_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def page(client: Client, simulation: Simulation) -> str:
    answer = client.get(f"/simulations/{simulation.pk}/")
    assert answer.status_code == 200
    return answer.content.decode()


def test_choices_run_to_the_end_side_by_side_and_other_teams_stay_unnamed(demo: Demo) -> None:
    client = logged_in(demo.user)
    typed = {"cluster": "demo", "until": "end", "policy_1": "fifo", "policy_3": "edf"}
    assert client.post("/what-if/", typed).status_code == 302
    made = run_next()
    assert made is not None
    made.refresh_from_db()
    assert (made.state, made.message) == ("done", "")
    found = json.loads(read_file(made, "results.json") or b"")
    assert [c["policy"] for c in found["choices"]] == [demo.cluster.policy, "fifo", "edf"]
    assert not any(c["failure"] for c in found["choices"])
    own = {str(pk) for pk in Job.objects.filter(team=demo.team).values_list("pk", flat=True)}
    assert set(found["jobs"]) - {""} <= own
    assert "" in found["jobs"]
    shown = page(client, made)
    assert "not-for-ada" not in shown
    for words in ("To the end of the queue", "Slowdown", "data-chart", "fifo"):
        assert words in shown
    assert "Apply" not in shown
    stranger = logged_in(a_user(team=a_team()))
    assert stranger.get(f"/simulations/{made.pk}/").status_code == 404
    assert stranger.post(f"/simulations/{made.pk}/apply/1/").status_code == 404
    assert client.post(f"/simulations/{made.pk}/apply/1/").status_code == 403
    assert Cluster.objects.get().policy == demo.cluster.policy


def test_nobody_reads_the_snapshot_of_a_what_if(demo: Demo) -> None:
    made = queue_end_create(demo.user, demo.cluster, [{"policy": "fifo"}])
    answer = api(demo.user).get(f"/api/v1/simulations/{made.pk}/")
    assert (answer.status_code, answer.json()["document"]) == (200, {})
    client = logged_in(demo.operator)
    assert client.get(f"/simulations/new/?from={made.pk}").status_code == 404


def test_five_values_of_time_are_compared_with_the_present_first(demo: Demo) -> None:
    client = logged_in(demo.user)
    assert client.post("/what-if/", {"cluster": "demo", "until": "values"}).status_code == 302
    made = run_next()
    assert made is not None
    choices = json.loads(read_file(made, "results.json") or b"")["choices"]
    assert [c["value_of_time"] for c in choices] == [0.01, 0.0, 0.0025, 0.04, 0.16]
    assert "time at 0.16/h" in page(client, made)


def test_operators_apply_a_choice_and_the_change_is_recorded(demo: Demo) -> None:
    made = queue_end_create(demo.operator, demo.cluster, [{"policy": "fifo", "value_of_time": 0.5}])
    run_next()
    client = logged_in(demo.operator)
    assert "Apply it" in page(client, made)
    RescheduleEvent.objects.all().delete()
    assert client.post(f"/simulations/{made.pk}/apply/1/").status_code == 302
    cluster = Cluster.objects.get()
    assert (cluster.policy, cluster.value_of_time) == ("fifo", Decimal("0.5"))
    entry = LogEntry.objects.get()
    assert entry.user == demo.operator
    assert f"policy from {demo.cluster.policy} to fifo" in entry.get_change_message()
    assert "value_of_time from 0.01" in entry.get_change_message()
    assert RescheduleEvent.objects.get().reason == "operator"
    assert client.post(f"/simulations/{made.pk}/apply/9/").status_code == 404
    assert client.post(f"/simulations/{made.pk}/apply/1/").status_code == 302
    assert LogEntry.objects.count() == 1


@pytest.mark.parametrize(
    ("choices", "field", "words"),
    [
        ([], "choices", "1 to 7"),
        ([{}] * 8, "choices", "not 8"),
        ([{}, {"policy": "best"}], "choices[1].policy", "known"),
        ([{"policy": "fifo", "parameters": {"x": 1}}], "choices[0].parameters", "no such"),
        ([{"value_of_time": -1}], "choices[0].value_of_time", "from 0 to 10,000"),
        ([{"value_of_time": 1e9}], "choices[0].value_of_time", "not 1e+09"),
    ],
)
def test_bad_choices_are_refused_by_field(
    demo: Demo, choices: list[dict[str, Any]], field: str, words: str
) -> None:
    answer = api(demo.user).post(END, {"choices": choices}, format="json")
    assert answer.status_code == 400
    assert words in answer.json()["error"]["fields"][field][0]
    assert not Simulation.objects.exists()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"value_2": "-3"}, "from 0 to 10,000"),
        ({"value_2": "nan"}, "not nan"),
        ({"value_2": "much"}, "must be a number"),
        ({"policy_5": "best"}, "known"),
        ({"parameters_1": "moves: ["}, "name: value"),
        ({}, "1 to 7 to compare"),
    ],
)
def test_the_form_says_what_is_wrong(demo: Demo, typed: dict[str, str], words: str) -> None:
    answer = logged_in(demo.user).post("/what-if/", {"cluster": "demo", "until": "end", **typed})
    assert answer.status_code == 422
    assert words in answer.content.decode()


def test_an_empty_queue_has_no_what_if() -> None:
    a_cluster(name="demo")
    answer = api(a_user("ada", team=a_team())).post(END, {"choices": [{}]}, format="json")
    assert "no job waits or runs" in answer.json()["error"]["fields"]["cluster"][0]


def test_a_choice_that_fails_says_so_beside_the_others() -> None:
    snapshot = a_snapshot(jobs=[a_job_view("a")])
    found = compare(snapshot, [Choice("fifo", {}, 0.0), Choice("gone", {}, 0.0)], 2)
    assert not isinstance(found[0], str)
    assert "gone" in str(found[1])


def test_a_value_of_time_prices_waiting_by_team_and_priority() -> None:
    snapshot = a_snapshot(jobs=[a_job_view("a"), a_job_view("b", priority=2)])
    costs = with_value_of_time(snapshot, 3.6).jobs.columns.numbers["waiting_cost"].tolist()
    assert costs == [0.001, waiting_cost(3.6, 1.0, 2)]


def test_a_change_of_a_cluster_by_rest_is_in_its_history_too(demo: Demo) -> None:
    answer = api(demo.operator).patch("/api/v1/clusters/demo/", {"seed": 77}, format="json")
    assert answer.status_code == 200
    said = LogEntry.objects.get(user=demo.operator).get_change_message()
    assert f"seed from {demo.cluster.seed} to 77" in said
