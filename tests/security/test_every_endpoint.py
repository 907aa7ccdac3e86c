"""Every address of the server with every wrong credential. A new one fails here until it is entered
with who it is for.
"""

import gzip
import hashlib
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone
from knox.models import AuthToken

from clusters.models import EnrolmentToken, Node
from clusters.services.enrolment import issue_enrolment_token, sha256
from controlplane.execution.protocol.calls import ENDPOINTS as ENDPOINTS_OF_AGENTS
from controlplane.execution.protocol.calls import Endpoint
from jobs.models import JobArray
from loadmaster.protocol import PROTOCOL_HEADER, Accept, AssignmentState
from loadmaster.samples import MetricsBatch
from loadmaster.wire import dumps
from tests.builders import a_cluster, a_job, a_team, a_user
from tests.builders_agents import (
    CLOCK,
    a_heartbeat,
    a_node_with_agent,
    a_registration,
    a_report,
    a_running_assignment,
    a_session_request,
)
from tests.builders_asgi import SiteClient
from tests.builders_jobs import a_token, output
from tests.builders_studies import a_done_simulation

pytestmark = pytest.mark.django_db
MARK = "not-for-you"
METHODS = ("get", "post", "put", "patch", "delete")
UUID = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"

OPEN, PERSON, TEAM, OPERATORS, WRITES, DOOR, NOTHING, LAUNCH = (
    "open to all", "who is logged in", "the team", "operators", "operators write",
    "a door", "nothing is there", "a launch",
)  # fmt: skip
JOB, NODE = "api/v1/^jobs/(?P<pk>[0-9a-fA-F-]{36})/", f"api/v1/^nodes/(?P<pk>{UUID})/"
SIMULATION = f"api/v1/^simulations/(?P<pk>{UUID})/"
WHAT_IF = "api/v1/clusters/<slug:name>/what-if/"
"""It is asked by POST; its own tests say what others see."""

ENDPOINTS = {
    "": PERSON, "login/": DOOR, "logout/": PERSON, "password/": PERSON, "tokens/": PERSON,
    "tokens/<slug:key>/revoke/": TEAM, "submit/": PERSON,
    "jobs/<uuid:job_id>/": TEAM,
    "jobs/<uuid:job_id>/<slug:action>/": TEAM, "nodes/": PERSON,
    "audit/": OPERATORS, "audit/audit.csv": OPERATORS,  # and maintainers, of their teams
    "teams/": PERSON, "teams/<slug:name>/members/": TEAM,
    "arrays/<uuid:array_id>/": TEAM, "arrays/<uuid:array_id>/<slug:action>/": TEAM,
    "api/v1/arrays/<uuid:array_id>/": TEAM, "api/v1/arrays/<uuid:array_id>/<slug:verb>/": TEAM,
    "nodes/<uuid:node_id>/<slug:action>/": OPERATORS,
    "timeline/": PERSON, "timeline/figure.json": PERSON, "rounds/": PERSON,
    "rounds/<int:pk>/": PERSON,
    "rounds/<int:pk>/snapshot.json": OPERATORS, "kinds/": PERSON, "live/": PERSON, "costs/": PERSON,
    "costs/figure.json": PERSON, "costs/costs.csv": PERSON,
    "api/v1/^jobs/$": PERSON, "api/v1/jobs/bulk/": PERSON, f"{JOB}$": TEAM,
    **{f"{JOB}{name}/$": TEAM for name in (
        "assignments", "attempts", "cancel", "clone", "events", "hold", "logs", "release",
        "requeue")},
    # Launches that have not ended: see tests/security/test_launch_tokens.py.
    "api/v1/script/jobs/": LAUNCH, "api/v1/script/jobs/<str:reference>/<slug:verb>/": LAUNCH,
    "api/v1/script/nodes/": LAUNCH,
    "api/v1/me/": PERSON, "api/v1/teams/": PERSON, "api/v1/teams/<slug:team>/": TEAM,
    "api/v1/teams/<slug:team>/members/<str:username>/": TEAM,
    "api/v1/teams/<slug:team>/secrets/": TEAM,
    "api/v1/teams/<slug:team>/secrets/<str:name>/": TEAM, "api/v1/tokens/": DOOR,
    "api/v1/tokens/current/": PERSON,
    "api/v1/tokens/<slug:key>/": TEAM,
    "api/v1/^clusters/$": PERSON, "api/v1/^clusters/(?P<name>[^/.]+)/$": WRITES,
    "api/v1/^clusters/(?P<name>[^/.]+)/reschedule/$": WRITES,
    "api/v1/clusters/<str:name>/tariffs/": WRITES,
    "api/v1/^nodes/$": PERSON, f"{NODE}$": PERSON,
    **{f"{NODE}{name}/$": WRITES for name in ("cordon", "drain", "role", "slots", "uncordon")},
    "api/v1/^gpu-types/$": PERSON, "api/v1/^gpu-types/(?P<name>[^/]+)/$": WRITES,
    "api/v1/^enrolment-tokens/$": OPERATORS,
    "api/v1/^enrolment-tokens/(?P<pk>[0-9]{1,18})/$": OPERATORS,
    "api/v1/^rounds/$": PERSON, "api/v1/^rounds/(?P<pk>[^/.]+)/$": OPERATORS,
    "api/v1/costs/": PERSON, "api/v1/policies/": PERSON,
    "simulations/": PERSON, "simulations/new/": PERSON, "simulations/compare/": PERSON,
    "what-if/": PERSON,
    "simulations/<uuid:pk>/": TEAM, "simulations/<uuid:pk>/report/": TEAM,
    "simulations/<uuid:pk>/files/<str:name>": TEAM,
    "simulations/<uuid:pk>/do/<slug:action>/": TEAM,
    "simulations/<uuid:pk>/apply/<int:number>/": TEAM,
    # Whoever has the link, which says itself what it is for: see
    # tests/controlplane/studies/test_sharing.py.
    "shared/simulations/<str:link>/": OPEN, "shared/simulations/<str:link>/report/": OPEN,
    "api/v1/^simulations/$": PERSON, f"{SIMULATION}$": TEAM, f"{SIMULATION}cancel/$": TEAM,
    f"{SIMULATION}share/$": TEAM,
    **{f"api/v1/simulations/<uuid:pk>/{name}": TEAM
       for name in ("results.json", "jobs.csv", "report.html")},
    WHAT_IF: PERSON, f"{WHAT_IF}end/": PERSON, "jobs/<uuid:job_id>/start-now/": TEAM,
    "api/v1/jobs/<uuid:pk>/start-now/": TEAM, "api/v1/job-forecasts/": PERSON,
    "api/v1/kinds/": PERSON, "api/v1/kinds/<int:pk>/": TEAM,
    **{f"api/v1/kinds/<int:pk>/{verb}/": OPERATORS for verb in ("forget", "publish", "withdraw")},
    "kinds/<int:pk>/<slug:action>/": OPERATORS, "api/v1/run-times/": PERSON,
    r"api/v1/[\s\S]*": NOTHING,
    "^api/schema/?$": PERSON, "^api/docs/?$": PERSON, "healthz": OPEN, "readyz": OPEN,
    "^metrics/?$": OPEN,
}  # fmt: skip
"""Who each address is for. /metrics is for operators and for whoever has the scrape token; its own
tests say so.
"""


CALLS = [call for call in ENDPOINTS_OF_AGENTS if call.name != "register"]


class Scene:
    """A job of a team, the node it runs on, and everybody who should not get at it."""

    def __init__(self) -> None:
        self.cluster = a_cluster(name="lab", **CLOCK)
        self.team = a_team(f"team-{MARK}")
        self.owner = a_user("owner", team=self.team)
        self.node = a_node_with_agent(self.cluster, token="the node's", name="volta")
        self.other_node = a_node_with_agent(self.cluster, token="another node's", name="tesla")
        self.job = a_job(
            self.cluster,
            name=f"job-{MARK}",
            team=self.team,
            user=self.owner,
            command=["echo", MARK],
            array=JobArray.objects.create(indices="0", size=1, lowest=0, highest=0),
            array_index=0,
        )
        self.assignment = a_running_assignment(self.node, self.job)
        output(self.assignment, f"{MARK}\n".encode())
        study = {"name": f"simulation-{MARK}", "team": self.team.name}
        self.simulation = a_done_simulation(self.owner, study=study)
        self.owners_key = AuthToken.objects.create(self.owner)[0].token_key
        self.other = a_user("other", team=a_team("another"))
        self.stranger = a_user("stranger")

    def url(self, route: str) -> str:
        """The route's address with the names of the scene."""
        pk = {
            "jobs": self.job.pk,
            "nodes": self.node.pk,
            "kinds": self.job.kind_id,
            "simulations": self.simulation.pk,
        }.get(_noun(route), 1)
        for converter, value in {
            "<uuid:job_id>": self.job.pk, "<uuid:node_id>": self.node.pk,
            "<uuid:assignment_id>": self.assignment.pk, "<uuid:array_id>": self.job.array_id,
            "<slug:verb>": "cancel",
            "<slug:action>": "cordon" if route.startswith("nodes") else "cancel", "<int:pk>": pk,
            "<slug:team>": self.team.name,
            "<uuid:pk>": pk, "<int:number>": 1, "<str:link>": "no-such-link",
            "<slug:name>": self.team.name if route.startswith("teams") else "lab",
            "<str:username>": "owner",
            "<str:name>": "report.html" if route.startswith("simulations") else "wandb",
            "<slug:key>": self.owners_key, "<str:stream>": "stdout", r"[\s\S]*": "nowhere",
        }.items():  # fmt: skip
            route = route.replace(converter, str(value))
        route = re.sub(
            r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)",
            lambda m: "lab" if m[1] == "name" else str(pk),
            route,
        )
        return "/" + route.removeprefix("/").replace("^", "").replace("$", "").replace("/?", "")

    def wrong_tokens(self) -> dict[str, str]:
        """Authorization headers that open nothing."""
        expired = AuthToken.objects.create(self.owner, expiry=timedelta(seconds=-5))[1]
        row, revoked = AuthToken.objects.create(self.owner)
        row.delete()
        gone = AuthToken.objects.create(User.objects.create_user("gone", is_active=False))[1]
        good = a_token(self.owner)
        return {
            "none": "", "no scheme": good, "no token": "Bearer", "two": f"Bearer {good} {good}",
            "a wrong one": f"Bearer {good[:-1]}x",
            "a beginning": f"Bearer {good[:8]}", "another scheme": f"Basic {good}",
            "no text": "Bearer \xff\xfe",
            "NUL": "Bearer a\0b",
            "huge": "Bearer " + "a" * 9000, "expired": f"Bearer {expired}",
            "revoked": f"Bearer {revoked}",
            "nobody's": f"Bearer {gone}",
        }  # fmt: skip


def _noun(route: str) -> str:
    return next(
        (noun for noun in ("simulations", "jobs", "nodes", "kinds") if f"{noun}/" in route), ""
    )


@pytest.fixture
def scene() -> Scene:
    return Scene()


def leaves(resolver: URLResolver, before: str = "") -> Iterator[tuple[str, URLPattern]]:
    for pattern in resolver.url_patterns:
        route = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from leaves(pattern, route)
        else:
            yield route, pattern


def routes(*kinds: str, under: str = "") -> list[str]:
    there = {route for route, _ in leaves(get_resolver())}
    return [
        route
        for route, kind in ENDPOINTS.items()
        if kind in kinds and route in there and under in route
    ]


def ask(client: Client, method: str, url: str, authorization: str = "") -> Any:
    headers = {PROTOCOL_HEADER: "1", **({"Authorization": authorization} if authorization else {})}
    return (
        getattr(client, method)(url, content_type="application/json", headers=headers)
        if method != "get"
        else client.get(url, headers=headers)
    )


def text_of(answer: Any) -> str:
    return (b"".join(answer.streaming_content) if answer.streaming else answer.content).decode()


def test_every_address_is_entered_with_who_it_is_for() -> None:
    missing = [
        route
        for route, _ in leaves(get_resolver())
        if route not in ENDPOINTS and not route.startswith("admin/")
    ]
    assert missing == [], f"enter these in ENDPOINTS: {missing}"


def test_no_wrong_token_opens_any_call_of_the_api(scene: Scene) -> None:
    calls = routes(PERSON, TEAM, OPERATORS, WRITES, LAUNCH, under="api/v1")
    assert len(calls) > 30
    for name, authorization in scene.wrong_tokens().items():
        for route in calls:
            for method in METHODS if name == "none" else ("get",):
                answer = ask(SiteClient(), method, scene.url(route), authorization)
                assert answer.status_code == 401, (name, method, route, answer.content)
                assert answer["WWW-Authenticate"].startswith("Bearer"), route


def test_no_wrong_token_opens_any_call_of_agents(scene: Scene) -> None:
    enrolment = issue_enrolment_token(scene.cluster)
    others = {
        "a person's": f"Bearer {a_token(scene.owner)}",
        "an enrolment's": f"Bearer {enrolment}",
    }
    for name, authorization in {**scene.wrong_tokens(), **others}.items():
        for call in CALLS:
            answer = call_with_body(scene, call, authorization)
            assert answer.status_code == 401, (name, call.name, answer.content)


def test_a_nodes_token_opens_nothing_of_another_node_nor_of_people(scene: Scene) -> None:
    token = "Bearer another node's"
    for call in CALLS:
        answer = call_with_body(scene, call, token)
        status = 403 if "nodes/" in call.path else 409
        assert answer.status_code == status, (call.name, answer.content)
        assert MARK not in answer.content.decode()
    for route in routes(PERSON, TEAM, OPERATORS, WRITES, LAUNCH, under="api/v1"):
        assert ask(SiteClient(), "get", scene.url(route), token).status_code == 401, route


def call_with_body(scene: Scene, call: Endpoint, authorization: str) -> Any:
    """The answer to a call that would be in order if it came from the assignment's own node."""
    run, offset = scene.assignment, len(f"{MARK}\n")
    url = f"{scene.url(call.path)}?offset={offset}&epoch=1&fence={run.fence}"
    bodies = {
        "session": lambda: dumps(a_session_request(scene.node)),
        "heartbeat": lambda: dumps(a_heartbeat(run)),
        "accept": lambda: dumps(Accept(epoch=1, fence=run.fence)),
        "state": lambda: dumps(a_report(run, AssignmentState.RUNNING)),
        "metrics": lambda: dumps(MetricsBatch(epoch=1, fence=run.fence, seq=1)),
        "log": lambda: gzip.compress(b"x"),
    }
    body = bodies[call.name]() if call.takes else b""
    headers = {
        PROTOCOL_HEADER: "1",
        "Authorization": authorization,
        "X-Content-SHA256": hashlib.sha256(b"x").hexdigest(),
    }
    return SiteClient().generic(call.method, url, body, headers=headers)


def test_the_same_calls_are_answered_to_the_node_itself(scene: Scene) -> None:
    for call in CALLS:
        if call.name == "session":
            continue  # it would end the others' epoch
        answer = call_with_body(scene, call, "Bearer the node's")
        assert answer.status_code in (200, 202, 204), (call.name, answer.content)


def test_a_revoked_nodes_token_is_over(scene: Scene) -> None:
    Node.objects.filter(pk=scene.node.pk).update(token_sha256=sha256("a newer one"))
    url = scene.url("/api/agent/v1/nodes/<uuid:node_id>/directives")
    assert ask(SiteClient(), "get", url, "Bearer the node's").status_code == 401
    assert ask(SiteClient(), "get", url, "Bearer a newer one").status_code == 204


@pytest.mark.parametrize("column", ["used_at", "expires_at"])
def test_an_enrolment_token_that_is_used_or_expired_lets_nobody_in(
    scene: Scene, column: str
) -> None:
    token = issue_enrolment_token(scene.cluster)
    EnrolmentToken.objects.filter(sha256=sha256(token)).update(
        **{column: timezone.now() - timedelta(seconds=1)}
    )
    headers = {PROTOCOL_HEADER: "1", "Authorization": f"Bearer {token}"}
    body = dumps(a_registration())
    answer = SiteClient().post(
        "/api/agent/v1/register", body, content_type="application/json", headers=headers
    )
    assert answer.status_code == 401
    assert not Node.objects.filter(machine_id="machine-1").exists()


@pytest.mark.parametrize("who", ["other", "stranger"])
def test_those_of_other_teams_learn_not_even_that_it_exists(scene: Scene, who: str) -> None:
    user: User = getattr(scene, who)
    token, browser = f"Bearer {a_token(user)}", SiteClient()
    browser.force_login(user)
    for route in routes(TEAM):
        for method in METHODS:
            client = SiteClient() if route.startswith("api/") else browser
            answer = ask(client, method, scene.url(route), token)
            assert answer.status_code in (404, 405), (method, route, answer.content)
            assert MARK not in answer.content.decode().replace(scene.team.name, ""), (method, route)
    scene.job.refresh_from_db()
    assert scene.job.state == "running"
    assert AuthToken.objects.filter(user=scene.owner).exists()


@pytest.mark.parametrize("who", ["other", "stranger"])
def test_no_list_shows_what_is_another_teams(scene: Scene, who: str) -> None:
    user: User = getattr(scene, who)
    token, browser = f"Bearer {a_token(user)}", SiteClient()
    browser.force_login(user)
    for route in routes(PERSON):
        if route in (
            "live/",
            "logout/",
            "api/v1/tokens/current/",
            "api/v1/jobs/bulk/",
            "api/v1/job-forecasts/",
            "rounds/<int:pk>/",
            WHAT_IF,
            f"{WHAT_IF}end/",
        ):
            continue
        client = SiteClient() if route.startswith("api/v1") else browser
        answer = ask(client, "get", scene.url(route), token if route.startswith("api/v1") else "")
        assert answer.status_code == 200, route
        assert MARK not in text_of(answer), route


def test_who_is_no_operator_may_not_act_as_one(scene: Scene) -> None:
    token, browser = f"Bearer {a_token(scene.owner)}", SiteClient()
    browser.force_login(scene.owner)
    for route in routes(OPERATORS, WRITES):
        reading = ENDPOINTS[route] == OPERATORS
        for method in METHODS if reading else METHODS[1:]:
            client = SiteClient() if route.startswith("api/") else browser
            answer = ask(client, method, scene.url(route), token)
            assert answer.status_code in (403, 404, 405), (method, route, answer.content)
    scene.node.refresh_from_db()
    assert scene.node.state == "ready"


def test_pages_send_whoever_is_not_logged_in_to_the_login(scene: Scene) -> None:
    token = f"Bearer {a_token(scene.owner)}"
    for route in routes(PERSON, TEAM, OPERATORS):
        if route.startswith(("api/v1", "^api")):
            continue
        for authorization in ("", token):
            answer = ask(SiteClient(), "get", scene.url(route), authorization)
            assert (answer.status_code, answer["Location"].partition("?")[0]) == (
                302,
                "/login/",
            ), route


def test_the_administration_is_for_operators_page_by_page(scene: Scene) -> None:
    browser = SiteClient()
    browser.force_login(scene.owner)
    pages = [route for route, _ in leaves(get_resolver()) if route.startswith("admin/")]
    assert len(pages) > 40
    for route in pages:
        url = "/" + re.sub(r"<[^>]+>|\(\?P<[^>]+>[^)]*\)", "1", route).replace("^", "").replace(
            "$", ""
        )
        for client in (browser, SiteClient()):
            for method in ("get", "post"):
                answer = getattr(client, method)(url)
                allowed = (
                    (200, 302, 404)
                    if "login" in url or "logout" in url or "jsi18n" in url
                    else (302, 403, 404, 405)
                )
                assert answer.status_code in allowed, (method, url)
                assert MARK not in answer.content.decode(), url


def test_where_nothing_is_the_answer_says_so_in_json(scene: Scene) -> None:
    for route in routes(NOTHING):
        answer = ask(SiteClient(), "get", scene.url(route))
        assert (answer.status_code, answer["Content-Type"]) == (404, "application/json")


@pytest.mark.parametrize("address", ["/healthz", "/readyz"])
def test_what_is_open_tells_nothing_about_anybody(scene: Scene, address: str) -> None:
    assert MARK not in SiteClient().get(address).content.decode()
