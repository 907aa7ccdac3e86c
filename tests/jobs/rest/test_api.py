"""REST: jobs, as their owners, colleagues, operators, strangers and anonymous callers see them."""

import json
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from clusters.models import Cluster, Node
from jobs.lifecycle import JobState
from jobs.models import Job, Membership
from jobs.submission.validation import FIELDS
from loadmaster.protocol import AssignmentState
from tests.builders import a_cluster, a_job, a_node, a_team, a_user, at
from tests.builders_jobs import a_placement, api, job_fields, output
from tests.builders_pages import a_forecast

pytestmark = pytest.mark.django_db
JOBS = "/api/v1/jobs/"
ACTIONS = ["cancel", "hold", "release", "requeue", "clone"]
PARTS = ["", "events/", "attempts/", "assignments/", "logs/"]


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(name="lab")


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(cluster, name="volta", gpus=2)


@pytest.fixture
def user() -> User:
    return a_user("ada", team=a_team("research"))


@pytest.fixture
def client(user: User) -> APIClient:
    return api(user)


def post(client: APIClient, path: str, body: bytes, content_type: str = "application/json") -> Any:
    """Bytes as they are, whatever they mean."""
    return client.generic("POST", path, body, content_type=content_type)  # type: ignore[arg-type]  # the stub knows no bytes


def of(user: User, cluster: Cluster, **values: Any) -> Job:
    return a_job(cluster, team=user.teams.get(), user=user, **values)


def test_a_job_is_submitted_and_shown(client: APIClient, node: Node) -> None:
    answer = client.post(JOBS, job_fields(gpus="1..2", due="+2h"), format="json")
    assert answer.status_code == 201
    shown = client.get(f"{JOBS}{answer.data['id']}/").data
    assert (shown["name"], shown["cluster"], shown["team"], shown["user"]) == (
        "digits",
        "lab",
        "research",
        "ada",
    )
    assert shown["progress"]["total_steps"] == 100
    assert shown["spec"]["gpus_max"] == 2
    assert shown["waiting"]["reason"]


def test_a_refused_job_gets_messages_by_field(client: APIClient, node: Node) -> None:
    answer = client.post(JOBS, job_fields(gpus=9, colour="red"), format="json")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "invalid"
    assert set(error["fields"]) == {"colour"}
    assert "colour: is no field of a job" in error["detail"]


def test_a_due_date_in_the_past_is_accepted_with_a_warning(client: APIClient, node: Node) -> None:
    answer = client.post(JOBS, job_fields(due=at(-3600).isoformat()), format="json")
    assert answer.status_code == 201
    assert "is in the past" in answer.data["warnings"][0]


def test_a_repeated_submission_is_answered_with_the_same_job(client: APIClient, node: Node) -> None:
    first, again = (
        client.post(JOBS, job_fields(), format="json", headers={"Idempotency-Key": "k"})
        for _ in range(2)
    )
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.data["id"] == again.data["id"]
    other = client.post(JOBS, job_fields(steps=5), format="json", headers={"Idempotency-Key": "k"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")


def test_a_key_shows_no_job_of_a_team_that_its_owner_has_left(
    client: APIClient, node: Node
) -> None:
    def submitted() -> Any:
        return client.post(JOBS, job_fields(), format="json", headers={"Idempotency-Key": "k"})

    assert submitted().status_code == 201
    Membership.objects.all().delete()
    answer = submitted()
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    assert "send a new key" in answer.json()["error"]["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[1,",
        b"",
        b"nonsense",
        b'{"steps": NaN}',
        b"[" * 100_000,
        b'{"a": 1' + b"0" * 5000 + b"}",
    ],
)
def test_malformed_json_is_400(client: APIClient, node: Node, body: bytes) -> None:
    answer = post(client, JOBS, body)
    assert answer.status_code == 400
    assert "error" in answer.json()


@pytest.mark.parametrize("body", [b"[]", b'"job"', b"null", b"3"])
def test_json_that_is_no_object_is_400(client: APIClient, node: Node, body: bytes) -> None:
    assert post(client, JOBS, body).status_code == 400


@pytest.mark.parametrize("path", [JOBS, "/api/v1/tokens/"])
def test_a_body_of_10_mb_is_413(client: APIClient, node: Node, path: str) -> None:
    answer = post(client, path, b'{"name": "' + b"x" * 10_000_000 + b'"}')
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


def test_what_is_no_json_is_415(client: APIClient) -> None:
    answer = post(client, JOBS, b"name=x", "application/x-www-form-urlencoded")
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("part", PARTS)
def test_a_stranger_learns_nothing_of_a_job(user: User, cluster: Cluster, part: str) -> None:
    path = f"{JOBS}{of(user, cluster).pk}/{part}"
    assert api(user).get(path).status_code == 200
    assert api(a_user(team=user.teams.get())).get(path).status_code == 200
    assert api(a_user(operator=True)).get(path).status_code == 200
    answer = api(a_user(team=a_team())).get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert api().get(path).status_code == 401


@pytest.mark.parametrize("verb", ACTIONS)
def test_a_stranger_can_do_nothing_to_a_job(user: User, cluster: Cluster, verb: str) -> None:
    job = of(user, cluster)
    path = f"{JOBS}{job.pk}/{verb}/"
    assert api(a_user(team=a_team())).post(path, {}, format="json").status_code == 404
    assert api().post(path, {}, format="json").status_code == 401
    job.refresh_from_db()
    assert (job.state, Job.objects.count()) == (JobState.QUEUED, 1)


@pytest.mark.parametrize("job_id", [uuid.uuid4(), "0" * 36, "nonsense"])
def test_an_unknown_job_is_404(client: APIClient, job_id: object) -> None:
    answer = client.get(f"{JOBS}{job_id}/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_an_unknown_address_is_a_404_in_json(client: APIClient) -> None:
    assert client.get("/api/v1/nothing/").json()["error"]["code"] == "not_found"
    assert api().post("/api/v1/nothing/").status_code == 404


def test_actions_answer_with_the_job_as_it_is_now(
    client: APIClient, user: User, cluster: Cluster
) -> None:
    path = f"{JOBS}{of(user, cluster).pk}/"
    states = [
        client.post(f"{path}{verb}/").data["state"]
        for verb in ("hold", "release", "cancel", "requeue")
    ]
    assert states == ["held", "queued", "cancelled", "queued"]
    events = client.get(f"{path}events/").data["results"]
    assert [e["event"] for e in events] == ["hold", "release", "cancelled", "requeue"]
    assert {e["actor"] for e in events} == {"ada"}


def test_an_action_the_state_does_not_allow_is_409_in_words(
    client: APIClient, user: User, cluster: Cluster
) -> None:
    answer = client.post(f"{JOBS}{of(user, cluster).pk}/release/")
    assert answer.status_code == 409
    assert answer.json()["error"] == {
        "code": "conflict",
        "detail": "the job is queued: it cannot be released",
    }


def test_a_clone_takes_overrides(client: APIClient, user: User, node: Node) -> None:
    job = of(user, node.cluster, steps_per_epoch=100)
    answer = client.post(f"{JOBS}{job.pk}/clone/", {"name": "again"}, format="json")
    assert (answer.status_code, answer.data["name"], answer.data["cloned_from"]) == (
        201,
        "again",
        job.pk,
    )
    assert client.post(f"{JOBS}{job.pk}/clone/", {"gpus": -1}, format="json").status_code == 400
    assert client.post(f"{JOBS}{job.pk}/clone/", [1], format="json").status_code == 400


def test_a_list_shows_what_the_caller_may_see(
    client: APIClient, user: User, cluster: Cluster
) -> None:
    mine = of(user, cluster)
    colleagues = a_job(cluster, team=user.teams.get())
    theirs = a_job(cluster)
    assert _ids(client.get(JOBS)) == {str(mine.pk), str(colleagues.pk)}
    assert _ids(api(a_user(operator=True)).get(JOBS)) == {
        str(j.pk) for j in (mine, colleagues, theirs)
    }
    assert _ids(api(a_user()).get(JOBS)) == set()
    assert api().get(JOBS).status_code == 401


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state=running", {"b"}), ("state=running&state=queued", {"a", "b"}), ("mine=true", {"a"}),
        ("mine=false", {"b", "c"}),
        ("active=true", {"a", "b"}), ("active=false", {"c"}), ("search=B", {"b"}),
        ("team=research", {"a", "b", "c"}),
        ("team=rivals", set()), ("cluster=lab", {"a", "b", "c"}), ("cluster=x", set()),
    ],
)  # fmt: skip
def test_filters(
    client: APIClient, user: User, cluster: Cluster, query: str, found: set[str]
) -> None:
    team = user.teams.get()
    of(user, cluster, name="a")
    a_job(cluster, team=team, name="b", state=JobState.RUNNING)
    a_job(cluster, team=team, name="c", state=JobState.FAILED)
    assert {row["name"] for row in client.get(f"{JOBS}?{query}").data["results"]} == found


def test_a_job_is_found_by_its_id(client: APIClient, user: User, cluster: Cluster) -> None:
    job, _ = of(user, cluster), of(user, cluster)
    assert _ids(client.get(f"{JOBS}?search={job.pk}")) == {str(job.pk)}


def test_a_filter_that_is_none_is_400_naming_it(client: APIClient) -> None:
    answer = client.get(f"{JOBS}?state=flying")
    assert answer.status_code == 400
    assert "state" in answer.json()["error"]["fields"]


def test_a_page_costs_the_same_queries_whatever_it_holds(
    client: APIClient, user: User, node: Node, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(2):
        for _ in range(5):
            job = of(
                user,
                node.cluster,
                waiting_code="no_capacity",
                waiting_detail={"nodes": [str(node.pk)]},
            )
            blocker = of(user, node.cluster)
            job.waiting_detail["jobs"] = [str(blocker.pk)]
            job.save()
            a_placement(blocker, a_node(node.cluster))
        with django_assert_num_queries(9):
            rows = client.get(f"{JOBS}?limit=100").data["results"]
    assert len(rows) == 20
    assert any("volta, held by job-" in (row["waiting"] or {}).get("reason", "") for row in rows)


def test_a_waiting_job_shows_its_expected_start_and_its_place_in_the_queue(
    client: APIClient, user: User, node: Node
) -> None:
    for start_s in (300.0, 600.0):
        job = of(user, node.cluster, waiting_code="no_capacity")
        forecast = a_forecast(job, start_s, node="volta", gpus=2, end_at=None)
    expected = client.get(f"{JOBS}{job.pk}/").json()["waiting"]["expected"]
    assert datetime.fromisoformat(expected["start"]) == forecast.start_at
    assert expected["low"] < expected["start"] < expected["high"]
    assert (expected["nodes"], expected["gpus"], expected["end"]) == (["volta"], 2, None)
    assert expected["position"] == 2
    (listed, first) = client.get(JOBS).json()["results"]
    assert listed["waiting"]["expected"] == expected
    assert first["waiting"]["expected"]["position"] == 1


def test_a_job_tells_why_no_start_is_expected_and_later_how_far_off_its_forecast_was(
    client: APIClient, user: User, node: Node
) -> None:
    job = of(user, node.cluster, waiting_code="no_capacity")
    nowhere: dict[str, Any] = {
        "planned_at": None,
        "low_at": None,
        "start_at": None,
        "high_at": None,
    }
    a_forecast(job, first=False, why="a job before it has no known end", **nowhere)
    (listed,) = client.get(JOBS).json()["results"]
    detail = client.get(f"{JOBS}{job.pk}/").json()
    for told in (listed["waiting"], detail["waiting"]):
        assert told["expected"] is None
        assert told["start_unknown"] == "a job before it has no known end"
    assert detail["first_forecast"] is None
    first = a_forecast(job, 300.0, first=True)
    assert first.start_at is not None
    started_at = first.start_at + timedelta(seconds=45)
    Job.objects.filter(pk=job.pk).update(state="running", started_at=started_at)
    found = client.get(f"{JOBS}{job.pk}/").json()["first_forecast"]
    assert (found["later_s"], found["inside"]) == (45.0, True)


def test_a_stranger_sees_no_forecast(client: APIClient, node: Node) -> None:
    job = of(a_user(team=a_team()), node.cluster)
    a_forecast(job, 300.0)
    assert client.get(f"{JOBS}{job.pk}/").status_code == 404


def test_detail_costs_few_queries(
    client: APIClient, user: User, node: Node, django_assert_max_num_queries: Any
) -> None:
    job = of(user, node.cluster, state=JobState.RUNNING)
    a_placement(job, node, gpus=2)
    with django_assert_max_num_queries(10):
        shown = client.get(f"{JOBS}{job.pk}/").data
    assert [
        (p["node"], p["gpu_type"], p["gpus"], len(p["devices"])) for p in shown["placement"]
    ] == [("volta", "V100", 2, 2)]


def test_progress_tells_speed_and_when_it_ends(client: APIClient, user: User, node: Node) -> None:
    job = of(
        user,
        node.cluster,
        state=JobState.RUNNING,
        steps_done=50,
        checkpoint_steps=40,
        last_loss=0.5,
    )
    a_placement(job, node, steps_per_s=2.0)
    progress = client.get(f"{JOBS}{job.pk}/").data["progress"]
    assert (progress["fraction"], progress["steps_per_s"], progress["last_loss"]) == (0.5, 2.0, 0.5)
    assert progress["eta"] is not None


def test_jobs_of_other_teams_in_the_way_are_not_named(
    client: APIClient, user: User, cluster: Cluster
) -> None:
    other = a_job(cluster, name="merger-plans")
    job = of(user, cluster, waiting_code="no_capacity", waiting_detail={"jobs": [str(other.pk)]})
    reason = client.get(f"{JOBS}{job.pk}/").data["waiting"]["reason"]
    assert reason == "It waits for GPUs held by a job of another team."


def test_history_lists_assignments_with_what_they_cost(
    client: APIClient, user: User, node: Node
) -> None:
    job = of(user, node.cluster)
    a_placement(job, node, AssignmentState.SUCCEEDED, ended_ago_s=5, energy_kwh=0.5)
    rows = client.get(f"{JOBS}{job.pk}/assignments/").data["results"]
    assert [(r["node"], r["state"], r["energy_kwh"]) for r in rows] == [("volta", "succeeded", 0.5)]


def test_a_log_is_read_piece_by_piece(client: APIClient, user: User, node: Node) -> None:
    job = of(user, node.cluster, state=JobState.COMPLETED)
    output(a_placement(job, node, AssignmentState.SUCCEEDED, ended_ago_s=60), b"0123456789" * 4)
    path, cursor, text = f"{JOBS}{job.pk}/logs/", "", ""
    for _ in range(3):
        piece = client.get(path, {"limit": "16", "cursor": cursor}).data
        text, cursor = text + piece["text"], piece["cursor"]
    assert (text, piece["done"]) == ("0123456789" * 4, True)
    assert client.get(path, {"offset": -4}).data["text"] == "6789"


@pytest.mark.parametrize(
    "query",
    [
        "stream=stdin",
        "cursor=x",
        "offset=abc",
        "limit=0",
        "limit=99999999999999999999999",
        "rank=-1",
        "offset=--1",
        "offset=٣x",
    ],
)
def test_a_log_asked_for_wrongly_is_400_naming_the_parameter(
    client: APIClient, user: User, node: Node, query: str
) -> None:
    job = of(user, node.cluster)
    output(a_placement(job, node), b"x")
    answer = client.get(f"{JOBS}{job.pk}/logs/?{query}")
    assert answer.status_code == 400
    assert list(answer.json()["error"]["fields"]) == [query.split("=")[0]]


def _ids(answer: Any) -> set[str]:
    return {row["id"] for row in answer.data["results"]}


NASTY = [
    "\ud800",
    "a\0b",
    10**400,
    -(10**400),
    float("1e308"),
    [[[]]],
    {"a": {}},
    True,
    "",
    " ",
    "9" * 5000,
    ["\ud800"],
    {"secret": "\0"},
]


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_can_be_given_anything_that_breaks_the_server(
    client: APIClient, node: Node, field: str
) -> None:
    for value in [*NASTY, {"A": {"secret": "\ud800"}}, {"\ud800": "x"}]:
        answer = post(client, JOBS, json.dumps(job_fields(**{field: value})).encode())
        assert answer.status_code in (201, 400), (field, value, answer.content)
        if answer.status_code == 400:
            assert answer.json()["error"]["code"] in ("invalid", "parse_error")


@pytest.mark.parametrize(
    "query",
    [
        "search=%00",
        "team=%00",
        "cluster=%ff",
        "state=%00",
        "limit=x",
        "offset=-1",
        "limit=" + "9" * 30,
    ],
)
def test_odd_filters_do_not_break_the_server(client: APIClient, query: str) -> None:
    assert client.get(f"{JOBS}?{query}").status_code in (200, 400)


def test_numbers_of_a_page_beyond_all_bounds_are_cut(
    client: APIClient, user: User, cluster: Cluster
) -> None:
    of(user, cluster)
    assert len(client.get(f"{JOBS}?limit={10**20}").data["results"]) == 1
    assert client.get(f"{JOBS}?offset={10**20}").data["results"] == []


def test_a_script_for_slurm_is_submitted_and_its_wrong_lines_are_named(
    client: APIClient, node: Node
) -> None:
    text = "#!/bin/sh\n#SBATCH -J mine --begin=now+1hour\ntrue\n"
    answer = client.post(JOBS, {"sbatch": {"script": text, "options": ["-n2"]}}, format="json")
    assert answer.status_code == 201, answer.content
    shown = client.get(f"{JOBS}{answer.data['id']}/").data
    assert (shown["name"], shown["spec"]["units"], shown["spec"]["script"]) == ("mine", 2, text)
    assert shown["begin"] is not None
    assert shown["waiting"]["code"] == "begins_later"
    bad = {"script": "#!/bin/sh\n#SBATCH --foo\n#SBATCH -t never\n"}
    answer = client.post(JOBS, {"sbatch": bad}, format="json")
    assert answer.status_code == 400
    assert json.loads(answer.content)["error"]["fields"]["sbatch"] == [
        "line 2: sbatch has no option --foo; remove it"
    ]


def test_a_stranger_finds_no_job_by_its_number(client: APIClient, node: Node, user: User) -> None:
    number = of(user, node.cluster).number
    stranger = api(a_user("eve", team=a_team("others")))
    assert client.get(JOBS, {"search": str(number)}).data["count"] == 1
    assert stranger.get(JOBS, {"search": str(number)}).data["count"] == 0
