"""Headers, cookies, forms, redirects and odd requests: what browsers and bad clients are held
to.
"""

import gzip
import hashlib
import json
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import NoReverseMatch, reverse

from jobs.models import LogChunk
from tests.builders import a_cluster, a_job, a_team, a_user
from tests.builders_agents import CLOCK, NODE_TOKEN, a_node_with_agent, a_running_assignment
from tests.builders_asgi import SiteClient
from tests.builders_jobs import api, job_fields

pytestmark = pytest.mark.django_db
PASSWORD = "a long password"
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


@pytest.fixture
def browser() -> Client:
    client = SiteClient(enforce_csrf_checks=True)
    client.force_login(a_user("ada", team=a_team("research")))
    return client


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/login/",
        "/submit/",
        "/timeline/",
        "/api/v1/me/",
        "/api/docs/",
        "/admin/",
        "/nope/",
        "/healthz",
    ],
)
def test_every_answer_carries_the_headers_that_hold_a_browser_back(
    browser: Client, path: str
) -> None:
    answer = browser.get(path)
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["Referrer-Policy"] == "same-origin"
    assert answer["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "camera=()" in answer["Permissions-Policy"]
    assert "frame-ancestors 'none'" in answer["Content-Security-Policy"]
    assert "no-store" in answer["Cache-Control"]


def test_answers_of_the_api_may_load_nothing_at_all(browser: Client) -> None:
    assert "default-src 'none'" in browser.get("/api/v1/me/")["Content-Security-Policy"]


def test_cookies_are_out_of_reach_of_scripts_other_sites_and_plain_text(settings: Any) -> None:
    a_user("grace", password=PASSWORD)
    settings.SESSION_COOKIE_SECURE = settings.CSRF_COOKIE_SECURE = True
    answer = SiteClient().post("/login/", {"username": "grace", "password": PASSWORD})
    session, csrf = answer.cookies["sessionid"], answer.cookies["csrftoken"]
    assert (session["httponly"], session["samesite"], session["secure"]) == (True, "Lax", True)
    assert (csrf["samesite"], csrf["secure"]) == ("Lax", True)


def test_a_session_that_somebody_planted_is_not_the_one_that_is_logged_in() -> None:
    a_user("grace", password=PASSWORD)
    client = SiteClient()
    client.cookies["sessionid"] = "planted0planted0planted0planted0"
    client.post("/login/", {"username": "grace", "password": PASSWORD})
    first = client.cookies["sessionid"].value
    assert first != "planted0planted0planted0planted0"
    client.post("/logout/")
    client.cookies["sessionid"] = first
    assert client.get("/").status_code == 302, "a session goes on after its logout"


@pytest.mark.parametrize(
    "elsewhere",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "http:evil.example",
        "\thttps://evil.example",
    ],
)
def test_a_login_leads_nowhere_else(elsewhere: str) -> None:
    a_user("grace", password=PASSWORD)
    answer = SiteClient().post(
        "/login/", {"username": "grace", "password": PASSWORD, "next": elsewhere}
    )
    assert answer["Location"] == "/"


def test_there_is_no_way_to_reset_a_password_by_mail() -> None:
    with pytest.raises(NoReverseMatch):
        reverse("password_reset")
    with pytest.raises(NoReverseMatch):
        reverse("admin_password_reset")


def test_the_administration_leads_to_the_one_page_that_changes_a_password() -> None:
    user = a_user("grace", password=PASSWORD, operator=True)
    client = SiteClient()
    client.force_login(user)
    new = {"new_password1": "another long one", "new_password2": "another long one"}
    for answer in (
        client.get(reverse("admin:password_change")),
        client.post(reverse("admin:password_change"), {"old_password": PASSWORD, **new}),
    ):
        assert (answer.status_code, answer["Location"]) == (302, "/password/")
    user.refresh_from_db()
    assert user.check_password(PASSWORD)


@pytest.mark.parametrize(
    "path", ["/submit/", "/logout/", "/password/", "/login/", "/jobs/{job}/cancel/"]
)
def test_no_form_is_taken_from_another_site(browser: Client, path: str) -> None:
    job = a_job(a_cluster())
    assert browser.post(path.format(job=job.pk), {"name": "x"}).status_code == 403


def test_the_api_takes_a_session_only_with_the_token_of_the_page(browser: Client) -> None:
    a_cluster()
    body = json.dumps(job_fields())
    refused = browser.post("/api/v1/jobs/", body, content_type="application/json")
    assert refused.status_code == 403
    page = browser.get("/submit/").content.decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    assert token
    taken = browser.post(
        "/api/v1/jobs/", body, content_type="application/json", headers={"X-CSRFToken": token[1]}
    )
    assert taken.status_code in (201, 400)


def test_pages_with_a_token_are_kept_by_no_cache() -> None:
    a_user("grace", password=PASSWORD)
    body = json.dumps({"username": "grace", "password": PASSWORD})
    answer = SiteClient().post("/api/v1/tokens/", body, content_type="application/json")
    assert (answer.status_code, answer["Cache-Control"]) == (201, "no-store")


def test_names_reach_pages_as_text(browser: Client) -> None:
    team = a_team("others")
    ada = a_user("eve", team=team)
    job = a_job(
        a_cluster(),
        team=team,
        user=ada,
        name=HOSTILE[:100],
        failure_reason=HOSTILE,
        command=[HOSTILE],
    )
    client = SiteClient()
    client.force_login(ada)
    for path in ("/", f"/jobs/{job.pk}/", f"/submit/?from={job.pk}"):
        page = client.get(path).content.decode()
        assert "&lt;script&gt;alert(1)" in page
        assert "<script>alert" not in page
        assert "<img src=x" not in page


@pytest.mark.parametrize(
    "name", ["a\x1b[31m", "a\u202egnp", "a\u2066b", "a\x7f", "a\x9b", "a\u2028b"]
)
def test_names_that_deceive_are_not_taken(name: str) -> None:
    a_cluster()
    answer = api(a_user(team=a_team())).post("/api/v1/jobs/", job_fields(name=name), format="json")
    assert answer.status_code == 400
    assert "control characters" in answer.json()["error"]["fields"]["name"][0]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"name": ' + b"9" * 100_000 + b"}",
        b'{"steps": 1e999}',
        b'{"steps": NaN}',
        b'{"name": "a", "name": "b", "steps": 1}',
        b'"\\ud800"',
        b'{"name": "\\ud800"}',
        b"\xff\xfe\x00",
        b"\x00",
        b"",
        b"null",
        b"\xef\xbb\xbf{}",
    ],
    ids=range(13),
)
@pytest.mark.parametrize("path", ["/api/v1/jobs/", "/api/v1/tokens/", "/api/agent/v1/register"])
def test_strange_json_is_refused_and_breaks_nothing(path: str, body: bytes) -> None:
    a_cluster()
    headers = {"Loadmaster-Protocol": "1", "Authorization": "Bearer x"} if "agent" in path else {}
    client: Any = api(a_user(team=a_team())) if path.endswith("jobs/") else SiteClient()
    answer = client.generic("POST", path, body, content_type="application/json", headers=headers)
    assert answer.status_code in (400, 401)
    assert answer["Content-Type"] == "application/json"


def test_a_gzip_bomb_in_a_log_is_refused_before_it_is_unpacked() -> None:
    node = a_node_with_agent(a_cluster(**CLOCK))
    assignment = a_running_assignment(node)
    bomb = gzip.compress(bytes(200_000_000), 9)
    assert len(bomb) < 400_000
    answer = SiteClient().put(
        f"/api/agent/v1/assignments/{assignment.pk}/logs/stdout"
        f"?offset=0&fence={assignment.fence}&epoch=1",
        bomb,
        headers={"Authorization": f"Bearer {NODE_TOKEN}", "Loadmaster-Protocol": "1",
                 "X-Content-SHA256": hashlib.sha256().hexdigest()},
    )  # fmt: skip
    assert answer.status_code == 413
    assert not LogChunk.objects.exists()


@pytest.mark.parametrize(
    "path",
    [
        "/static/%2e%2e/manage.py",
        "/static/../manage.py",
        "/static/..%2fmanage.py",
        "/api/v1/%2e%2e/%2e%2e/etc/passwd",
        "/static//etc/passwd",
    ],
)
def test_tricks_with_paths_lead_to_nothing(browser: Client, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 404
    assert b"root:" not in answer.content
    assert b"django" not in answer.content.lower()


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PROPFIND", "OPTIONS", "HEAD", "DELETE"])
@pytest.mark.parametrize(
    "path", ["/", "/api/v1/jobs/", "/api/agent/v1/register", "/healthz", "/login/"]
)
def test_odd_verbs_do_nothing(browser: Client, method: str, path: str) -> None:
    answer = browser.generic(method, path)
    assert answer.status_code < 500
    if method not in ("OPTIONS", "HEAD"):
        assert answer.status_code in (302, 400, 401, 403, 405, 426)
