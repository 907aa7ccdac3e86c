"""What browsers are allowed to do on our pages, and that pages keep to it."""

import asyncio
import re
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
from django.contrib.staticfiles.storage import StaticFilesStorage
from django.http import StreamingHttpResponse
from django.test import AsyncClient, Client, override_settings

from controlplane.web.pages.static_files import PLOTLY_NAME, PlotlyFinder, StaticStorage
from tests.builders import a_user
from tests.builders_pages import a_busy_cluster

pytestmark = pytest.mark.django_db


def directives(header: str) -> dict[str, str]:
    return {
        name: values
        for name, _, values in (part.strip().partition(" ") for part in header.split(";"))
    }


def test_our_pages_run_nothing_but_our_own_files(client: Client) -> None:
    client.force_login(a_user())
    policy = directives(client.get("/")["Content-Security-Policy"])
    assert policy["default-src"] == "'self'"
    assert policy["object-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in str(policy)


def test_the_timeline_is_as_strict_as_the_other_pages(client: Client) -> None:
    client.force_login(a_user())
    assert (
        client.get("/timeline/")["Content-Security-Policy"]
        == client.get("/")["Content-Security-Policy"]
    )


def test_the_administration_has_a_policy_of_its_own(client: Client) -> None:
    client.force_login(a_user(operator=True))
    policy = directives(client.get("/admin/")["Content-Security-Policy"])
    assert "'unsafe-eval'" in policy["script-src"]
    assert policy["frame-ancestors"] == "'none'"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/submit/",
        "/jobs/{job}/",
        "/nodes/",
        "/timeline/",
        "/rounds/",
        "/rounds/{round}/",
        "/kinds/",
        "/nope/",
    ],
)
def test_no_page_has_inline_scripts_or_styles_or_fetches_from_elsewhere(
    client: Client, path: str
) -> None:
    demo = a_busy_cluster()
    client.force_login(demo.operator)
    page = client.get(path.format(job=demo.running.pk, round=demo.round.pk)).content.decode()
    assert not re.search(r"<script(?![^>]*\ssrc=)", page)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", page)
    assert not re.search(r"(src|href|action)=.https?://", page)


def test_plotly_comes_out_of_its_wheel_under_a_name_with_its_version() -> None:
    found = finders.find(PLOTLY_NAME)
    assert str(found).endswith("plotly.min.js")
    assert finders.find("vendor/plotly-0.0.0.min.js") is None
    ((name, storage),) = PlotlyFinder().list(None)
    assert name == PLOTLY_NAME
    with storage.open(name) as script:
        assert b"plotly.js" in script.read(200)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_static_files_are_streamed_by_every_kind_of_server(asynchronous: bool) -> None:
    def plainly() -> bytes:
        return Client().get("/static/loadmaster.css").getvalue()

    async def in_turns() -> bytes:
        answer = await AsyncClient().get("/static/loadmaster.css")
        assert isinstance(answer, StreamingHttpResponse)
        return b"".join([block async for block in aiter(answer.streaming_content)])

    sheet = asyncio.run(in_turns()) if asynchronous else plainly()
    assert sheet == Path(str(finders.find("loadmaster.css"))).read_bytes()


def test_names_are_plain_until_files_are_collected(tmp_path: object) -> None:
    with override_settings(STATIC_ROOT=str(tmp_path)):
        assert StaticStorage().url("loadmaster.css") == StaticFilesStorage().url("loadmaster.css")


def test_too_many_failed_logins_lock_the_name_for_a_while(client: Client) -> None:
    a_user("ada")
    with override_settings(AXES_ENABLED=True, AXES_FAILURE_LIMIT=3):
        answers = [
            client.post("/login/", {"username": "ada", "password": "wrong"}) for _ in range(4)
        ]
        right = client.post("/login/", {"username": "ada", "password": "a long password"})
    assert [a.status_code for a in answers[:2]] == [200, 200]
    assert answers[-1].status_code == right.status_code == 429
    assert "Locked for a while" in right.content.decode()
    assert "15 min" in right.content.decode()


def test_a_login_leads_on_to_the_page_that_was_wanted(client: Client) -> None:
    a_user("ada")
    answer = client.post(
        "/login/", {"username": "ada", "password": "a long password", "next": "/nodes/"}
    )
    assert answer["Location"] == "/nodes/"
    elsewhere = client.post(
        "/login/",
        {"username": "ada", "password": "a long password", "next": "https://example.org/"},
    )
    assert elsewhere["Location"] == "/"


def test_logging_out_is_a_post(client: Client) -> None:
    client.force_login(a_user())
    assert client.get("/logout/").status_code == 405
    assert client.post("/logout/")["Location"] == "/login/"
    assert client.get("/").status_code == 302


def test_a_form_without_its_token_is_refused_with_a_page() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(a_user())
    answer = client.post("/submit/", {})
    assert answer.status_code == 403
    assert "The form was too old" in answer.content.decode()


def test_an_error_on_our_side_is_answered_with_a_page(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("jobs.pages.views.queue_page", broken)
    client.raise_request_exception = False
    client.force_login(a_user())
    answer = client.get("/")
    assert answer.status_code == 500
    assert "Something broke on our side" in answer.content.decode()
