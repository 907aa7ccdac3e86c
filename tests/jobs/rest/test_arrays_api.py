"""REST of arrays: submitted in one call, folded in lists, acted on whole, hidden from others."""

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from clusters.models import Node
from jobs.arrays.actions import ACTIONS
from jobs.models import Job
from tests.builders import a_cluster, a_node, a_team, a_user
from tests.builders_jobs import api, job_fields

pytestmark = pytest.mark.django_db
JOBS, ARRAYS = "/api/v1/jobs/", "/api/v1/arrays/"


@pytest.fixture
def node() -> Node:
    return a_node(a_cluster())


@pytest.fixture
def user(node: Node) -> User:
    return a_user("ada", team=a_team("vision"))


@pytest.fixture
def client(user: User) -> APIClient:
    return api(user)


def submitted(client: APIClient, array: str = "0-4%2", **fields: Any) -> dict[str, Any]:
    data = job_fields(name="sweep", steps=None, array=array, **fields)
    answer = client.post(JOBS, data, format="json")
    assert answer.status_code == 201, answer.json()
    return dict(answer.json())


def put(array: str, *states: str) -> None:
    for index, state in enumerate(states):
        Job.objects.filter(array=uuid.UUID(array), array_index=index).update(state=state)


def test_the_answer_names_the_array_and_its_first_element(client: APIClient) -> None:
    body = submitted(client)
    given = {"index": 0, "indices": "0-4", "at_once": 2, "size": 5, "states": {}}
    own = {name: body["array"][name] for name in ("id", "number")}
    assert body["array"] == {**own, **given}
    assert body["number"] == own["number"] + 1
    assert "array" not in body["spec"]
    single = client.post(JOBS, job_fields(), format="json").json()
    assert single["array"] is None


def test_a_bad_array_is_a_400_with_its_field(client: APIClient) -> None:
    answer = client.post(JOBS, job_fields(array="9-1"), format="json")
    assert answer.status_code == 400
    assert list(answer.json()["error"]["fields"]) == ["array"]


def test_an_array_says_how_many_of_its_elements_are_in_which_state(client: APIClient) -> None:
    array = submitted(client)["array"]["id"]
    put(array, "completed", "running", "running", "failed")
    body = client.get(f"{ARRAYS}{array}/").json()
    assert (body["name"], body["indices"], body["at_once"], body["size"]) == ("sweep", "0-4", 2, 5)
    assert body["states"] == {"queued": 1, "running": 2, "completed": 1, "failed": 1}


def test_elements_are_listed_in_order_and_found_by_index(client: APIClient) -> None:
    array = submitted(client, "2,9,4")["array"]["id"]
    submitted(client)
    rows = client.get(JOBS, {"array": array}).json()["results"]
    assert [row["array"]["index"] for row in rows] == [2, 4, 9]
    found = client.get(JOBS, {"array": array, "index": 4}).json()["results"]
    assert [row["array"]["index"] for row in found] == [4]


@pytest.mark.parametrize(
    ("query", "index", "others"),
    [
        ({}, 1, 1),
        ({"active": "true"}, 1, 1),
        ({"state": "queued"}, 3, 1),
        ({"state": "failed"}, 2, 0),
        ({"active": "false"}, 0, 0),
        ({"search": "swe"}, 1, 1),
    ],
)
def test_a_folded_list_has_one_row_for_an_array(
    client: APIClient, query: dict[str, str], index: int, others: int
) -> None:
    array = submitted(client)["array"]["id"]
    put(array, "completed", "running", "failed")
    client.post(JOBS, job_fields(name="sweeper"), format="json")
    rows = client.get(JOBS, {**query, "fold": "true"}).json()["results"]
    (row,) = [row for row in rows if row["array"]]
    assert (row["array"]["id"], row["array"]["index"]) == (array, index)
    assert sum(row["array"]["states"].values()) == 5
    assert len(rows) == 1 + others


def test_an_element_is_found_by_its_own_id_and_an_array_by_its(client: APIClient) -> None:
    array = submitted(client)["array"]["id"]
    third = str(Job.objects.get(array_index=3).pk)
    rows = client.get(JOBS, {"search": third, "fold": "true"}).json()["results"]
    assert [row["id"] for row in rows] == [third]
    rows = client.get(JOBS, {"search": array[:13], "fold": "true"}).json()["results"]
    assert [row["array"]["id"] for row in rows] == [array]


@pytest.mark.parametrize("verb", ACTIONS)
def test_an_action_answers_with_the_array_and_what_it_reached(client: APIClient, verb: str) -> None:
    array = submitted(client)["array"]["id"]
    put(array, "failed", "cancelled", "held")
    body = client.post(f"{ARRAYS}{array}/{verb}/").json()
    reached = {"cancel": 3, "hold": 2, "release": 1, "requeue": 2}[verb]
    assert body["changed"] == reached
    assert sum(body["states"].values()) == 5


def test_a_stranger_learns_nothing_of_an_array_and_can_do_nothing_to_it(
    client: APIClient, user: User
) -> None:
    array = submitted(client)["array"]["id"]
    eve, colleague = api(a_user(team=a_team())), api(a_user(team=user.teams.get()))
    assert colleague.get(f"{ARRAYS}{array}/").status_code == 200
    assert api(a_user(operator=True)).get(f"{ARRAYS}{array}/").status_code == 200
    for verb in ("", *(f"{verb}/" for verb in ACTIONS)):
        call, door = (eve.post, api().post) if verb else (eve.get, api().get)
        answer = call(f"{ARRAYS}{array}/{verb}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        assert door(f"{ARRAYS}{array}/{verb}").status_code == 401
    assert eve.get(JOBS, {"array": array}).json()["results"] == []
    assert set(Job.objects.values_list("state", flat=True)) == {"queued"}


@pytest.mark.parametrize("array", [uuid.uuid4(), "nonsense", "0" * 36])
def test_an_unknown_array_is_404(client: APIClient, array: object) -> None:
    assert client.get(f"{ARRAYS}{array}/").status_code == 404
    assert client.post(f"{ARRAYS}{array}/cancel/").status_code == 404
    assert client.post(f"{ARRAYS}{array}/explode/").status_code == 404


def test_a_folded_page_costs_few_queries(
    client: APIClient, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(3):
        submitted(client)
    with django_assert_max_num_queries(12):
        rows = client.get(JOBS, {"fold": "true"}).json()["results"]
    assert len(rows) == 3
