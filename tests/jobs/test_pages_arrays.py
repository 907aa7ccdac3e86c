"""Arrays on pages: one row of the queue that unfolds, a page of their own, nothing for others."""

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from clusters.models import Node
from jobs.models import Job, JobArray
from jobs.services import job_submit
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_jobs import a_placement, job_fields

pytestmark = pytest.mark.django_db

LIST = "/api/v1/jobs/?fold=true"
ON_POSTGRES = connection.vendor == "postgresql"


@pytest.fixture
def node() -> Node:
    return a_node(a_cluster())


@pytest.fixture
def user(node: Node) -> User:
    return a_user("ada", team=a_team("vision"))


@pytest.fixture
def ada(client: Client, user: User) -> Client:
    client.force_login(user)
    return client


def an_array(user: User, indices: str = "0-29%2", **states: int) -> JobArray:
    """An array with so many elements in these states, and the rest queued."""
    job = job_submit(user, job_fields(name="sweep", steps=None, array=indices)).job
    array = job.array
    assert array is not None
    keys = list(array.jobs.order_by("array_index").values_list("pk", flat=True))
    for state, count in states.items():
        some, keys = keys[:count], keys[count:]
        Job.objects.filter(pk__in=some).update(state=state)
    return array


def text(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return answer.content.decode()


def steps_of(read: Callable[[], object]) -> int:
    """Hundreds of steps of SQLite's machine that a read takes."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.connection.set_progress_handler(count, 100)
    try:
        read()
    finally:
        connection.connection.set_progress_handler(None, 100)
    return steps


def titles(page: str) -> list[str]:
    """Names of the rows of jobs and arrays, in order."""
    return re.findall(r'<a class="title"[^>]*>([^<]*)</a>', page)


def groups(page: str) -> list[str]:
    return re.findall(r'<tr class="group"><th[^>]*>([^<]*)</th>', page)


@pytest.mark.skipif(ON_POSTGRES, reason="steps are counted of SQLite; times are in `make load`")
@pytest.mark.parametrize("path", ["/", "/?state=waiting", "/?state=all", f"{LIST}&active=true"])
def test_reading_the_queue_grows_with_elements_not_their_square(
    ada: Client, user: User, path: str
) -> None:
    an_array(user, "0-399")
    few = steps_of(lambda: text(ada, path))
    an_array(user, "0-399")
    an_array(user, "0-799")
    assert steps_of(lambda: text(ada, path)) < 6 * few


def test_an_array_is_one_row_of_the_queue(ada: Client, user: User, node: Node) -> None:
    a_job(node.cluster, user=user, team=user.teams.get(), name="other")
    an_array(user, completed=12, running=2)
    page = text(ada, "/")
    assert sorted(titles(page)) == ["other", "sweep[0-29]"]
    assert groups(page) == ["Running", "Waiting"]
    assert "at most 2 at a time" in page
    assert re.findall(r"<span>(\d+) <span", page) == ["16", "2", "12"]
    assert 'value="40.00"' in page


@pytest.mark.parametrize(
    ("state", "shown"),
    [("running", 1), ("waiting", 1), ("completed", 1), ("failed", 0), ("all", 1), ("", 1)],
)
def test_an_array_is_one_row_in_each_list_with_one_of_its_elements(
    ada: Client, user: User, state: str, shown: int
) -> None:
    an_array(user, completed=3, running=2)
    assert titles(text(ada, f"/?state={state}")) == ["sweep[0-29]"] * shown


def test_a_row_unfolds_to_the_first_elements(ada: Client, user: User) -> None:
    array = an_array(user, completed=3, running=2)
    page = text(ada, f"/?open={array.pk}")
    assert titles(page)[:4] == ["sweep[0-29]", "sweep[3]", "sweep[4]", "sweep[5]"]
    assert len(titles(page)) == 21
    assert "10 more elements" in page
    assert f"open={array.pk}&amp;page=1" in page  # and what is refreshed stays unfolded


def test_an_element_is_found_by_its_id(ada: Client, user: User) -> None:
    array = an_array(user)
    third = array.jobs.get(array_index=3)
    assert titles(text(ada, f"/?search={third.pk}")) == ["sweep[3]"]
    assert titles(text(ada, f"/?search={array.pk}")) == ["sweep[0-29]"]
    assert titles(text(ada, "/?search=swee")) == ["sweep[0-29]"]


def test_an_arrays_page_lists_its_elements_page_by_page(ada: Client, user: User) -> None:
    array = an_array(user, "0-69", completed=3, running=2)
    page = text(ada, f"/arrays/{array.pk}/")
    assert groups(page) == ["Running", "Waiting"]
    assert titles(page)[:3] == ["sweep[3]", "sweep[4]", "sweep[5]"]
    assert len(titles(page)) == 50
    assert titles(text(ada, f"/arrays/{array.pk}/?page=2"))[-3:] == [
        f"sweep[{i}]" for i in (0, 1, 2)
    ]


def test_the_queue_costs_the_same_queries_whatever_arrays_it_holds(
    ada: Client, user: User, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    an_array(user)
    text(ada, "/")
    with django_assert_num_queries(15) as first:
        text(ada, "/")
    for _ in range(3):
        an_array(user, running=3)
    with django_assert_num_queries(len(first)):
        text(ada, "/")


def test_an_element_names_its_array_and_its_reason_for_waiting(ada: Client, user: User) -> None:
    array = an_array(user)
    page = text(ada, f"/jobs/{array.jobs.get(array_index=5).pk}/")
    assert "<h1>sweep[5]</h1>" in page
    assert f'<a href="/arrays/{array.pk}/">its array</a>' in page
    assert "Its array runs at most 2 elements at a time." in page


@pytest.mark.parametrize(("action", "state"), [("cancel", "cancelled"), ("hold", "held")])
def test_an_array_is_acted_on_from_its_page(
    ada: Client, user: User, node: Node, action: str, state: str
) -> None:
    array = an_array(user, "0-3", running=1)
    a_placement(array.jobs.get(array_index=0), node, gpus=0)
    assert f'id="{action}"' in text(ada, f"/arrays/{array.pk}/")
    answer = ada.post(f"/arrays/{array.pk}/{action}/", follow=True)
    assert "elements are" in answer.content.decode()
    assert array.jobs.filter(state=state).count() == 3
    assert ada.post(f"/arrays/{array.pk}/explode/").status_code == 404


def test_a_stranger_sees_no_array_and_can_do_nothing_to_it(client: Client, user: User) -> None:
    array = an_array(user)
    assert client.get(f"/arrays/{array.pk}/").status_code == 302
    client.force_login(a_user("eve", team=a_team()))
    assert client.get(f"/arrays/{array.pk}/").status_code == 404
    assert client.post(f"/arrays/{array.pk}/cancel/").status_code == 404
    page = text(client, f"/?open={array.pk}&state=all")
    assert titles(page) == []
    assert set(array.jobs.values_list("state", flat=True)) == {"queued"}


def test_submitting_an_array_leads_to_its_page(ada: Client, node: Node) -> None:
    yaml = 'name: sweep\ncommand: ["true"]\narray: 0-2%1\n'
    answer = ada.post("/submit/", {"yaml": yaml})
    assert answer["Location"] == f"/arrays/{JobArray.objects.get().pk}/"
