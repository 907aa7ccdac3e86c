"""Every change that people make to what is a team's, tried with every role. An address that accepts
changes fails here until it is entered.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.urls import get_resolver
from knox.models import AuthToken

from controlplane.audit.models import Channel, Entry
from controlplane.studies.models import Simulation
from jobs.models import Job, JobArray, Membership, Secret, Team, TeamRole
from jobs.secrets import set_secret
from tests.builders import a_cluster, a_job, a_team, a_user
from tests.builders_asgi import SiteClient
from tests.builders_jobs import a_token, job_fields
from tests.builders_studies import a_done_simulation, a_simulation, a_study
from tests.security.test_every_endpoint import ENDPOINTS, METHODS, TEAM, Scene, ask, leaves

pytestmark = pytest.mark.django_db

OPERATOR = "operator"
LADDER = (None, *TeamRole, OPERATOR)
"""Who may do ever more: strangers, the roles, operators."""
WHO = {role or "stranger": role for role in LADDER}
API_JOB, API_STUDY = "api/v1/^jobs/(?P<pk>[0-9a-fA-F-]{36})/", next(
    route.removesuffix("$") for route in ENDPOINTS if "^simulations/(?P<pk>" in route
)  # fmt: skip


class Place:
    """A team with things of its maintainer `owner`, and of `me`, who has the role to be tried."""

    def __init__(self, role: str | None) -> None:
        self.cluster = a_cluster(name="lab")
        self.team = a_team("vision")
        self.owner = a_user("owner", team=self.team, role=TeamRole.MAINTAINER)
        self.mate = a_user("mate", team=self.team)
        self.me = a_user("me", operator=role == OPERATOR)
        if role in TeamRole.values:
            Membership.objects.create(team=self.team, user=self.me, role=role)
        set_secret(self.team, "wandb", "hush")
        self.client = SiteClient()
        self.client.force_login(self.me)
        self.token = f"Bearer {a_token(self.me)}"

    def job(self, user: User, state: str = "queued") -> Job:
        return a_job(self.cluster, team=self.team, user=user, state=state)

    def array(self, user: User, state: str = "queued") -> Any:
        array = JobArray.objects.create(indices="0", size=1, lowest=0, highest=0)
        job = a_job(self.cluster, team=self.team, user=user, state=state)
        Job.objects.filter(pk=job.pk).update(array=array, array_index=0)
        return array

    def study(self, user: User, state: str) -> Simulation:
        made = a_done_simulation() if state != "queued" else a_simulation()
        key = "a" * 43 if state == "shared" else ""
        rows = Simulation.objects.filter(pk=made.pk)
        rows.update(user=user, team=self.team, share_key=key)
        return rows.get()

    def sent(self, change: "Change", url: str) -> int:
        """Status of the answer to this change."""
        if change.route.startswith("api/"):
            body = "" if change.body is None else change.body
            headers = {"Authorization": self.token}
            sending: Callable[..., Any] = getattr(SiteClient(), change.method)
            answer = sending(url, body, content_type="application/json", headers=headers)
        else:
            answer = self.client.post(url, change.body)
        return int(answer.status_code)


@dataclass(frozen=True, slots=True)
class Change:
    """A way to change something, and the least role for one's own and for a team-mate's."""

    method: str
    route: str
    own: str
    mates: str
    made: Callable[[Place, User], Any] = lambda place, user: None
    """Makes the thing that is to be changed, of this person."""
    names: dict[str, str] = field(default_factory=dict)
    body: Any = None
    refused: int = 403
    """Status for who sees the thing and lacks the role."""

    def url(self, place: Place, thing: Any) -> str:
        url = self.route
        for name, value in self.names.items():
            url = url.replace(name, value)
        pk = str(getattr(thing, "pk", ""))
        for place_of_id in (API_JOB, API_STUDY):
            url = url.replace(place_of_id, f"api/v1/{_noun(place_of_id)}/{pk}/")
        for converter in ("<uuid:job_id>", "<uuid:array_id>", "<uuid:pk>"):
            url = url.replace(converter, pk)
        return "/" + url.replace("^", "").replace("$", "")


def _noun(route: str) -> str:
    return "jobs" if "jobs" in route else "simulations"


M, MM = TeamRole.MEMBER, TeamRole.MAINTAINER
STATES = {"cancel": "queued", "hold": "queued", "release": "held", "requeue": "failed"}


def _job(state: str) -> Callable[[Place, User], Job]:
    return lambda place, user: place.job(user, state)


def _array(state: str) -> Callable[[Place, User], Any]:
    return lambda place, user: place.array(user, state)


def _study(state: str) -> Callable[[Place, User], Simulation]:
    return lambda place, user: place.study(user, state)


def _changes() -> Iterator[Change]:
    for verb, state in STATES.items():
        yield Change("post", f"{API_JOB}{verb}/$", M, MM, _job(state))
        page = "jobs/<uuid:job_id>/<slug:action>/"
        yield Change("post", page, M, MM, _job(state), {"<slug:action>": verb})
        page = "arrays/<uuid:array_id>/<slug:action>/"
        yield Change("post", page, M, MM, _array(state), {"<slug:action>": verb})
        api = "api/v1/arrays/<uuid:array_id>/<slug:verb>/"
        yield Change("post", api, M, MM, _array(state), {"<slug:verb>": verb})
    yield Change("post", f"{API_JOB}clone/$", M, M, _job("queued"), body={}, refused=400)
    for verb, state in {
        "cancel": "queued", "share": "done", "unshare": "shared", "delete": "done"
    }.items():  # fmt: skip
        page = "simulations/<uuid:pk>/do/<slug:action>/"
        yield Change("post", page, M, MM, _study(state), {"<slug:action>": verb})
    yield Change("post", f"{API_STUDY}cancel/$", M, MM, _study("queued"))
    yield Change("post", f"{API_STUDY}share/$", M, MM, _study("done"))
    yield Change("delete", f"{API_STUDY}share/$", M, MM, _study("shared"))
    yield Change("delete", f"{API_STUDY}$", M, MM, _study("done"))
    secret = {"<slug:team>": "vision", "<str:name>": "wandb"}
    api = "api/v1/teams/<slug:team>/secrets/<str:name>/"
    yield Change("put", api, MM, MM, names=secret, body={"value": "new"})
    yield Change("delete", api, MM, MM, names=secret)
    vision = {"<slug:team>": "vision", "<slug:name>": "vision", "<str:username>": "mate"}
    api = "api/v1/teams/<slug:team>/members/<str:username>/"
    yield Change("put", api, OPERATOR, OPERATOR, names=vision, body={"role": "maintainer"})
    yield Change("delete", api, OPERATOR, OPERATOR, names=vision)
    body = {"username": "mate", "role": "viewer"}
    page = "teams/<slug:name>/members/"
    yield Change("post", page, OPERATOR, OPERATOR, names=vision, body=body)
    api = "api/v1/teams/<slug:team>/"
    yield Change("patch", api, OPERATOR, OPERATOR, names=vision, body={"weight": 3})


CHANGES = list(_changes())
OTHERWISE = {
    "api/v1/tokens/<slug:key>/": "a person's own",
    "tokens/<slug:key>/revoke/": "a person's own",
    "simulations/<uuid:pk>/apply/<int:number>/": "operators': below",
}
"""Addresses of teams that accept changes and are tried elsewhere."""


def things(place: Place) -> list[Any]:
    """Everything that the changes could reach."""
    return [
        list(model.objects.order_by("pk").values())
        for model in (Job, Secret, Simulation, Membership, Team)
    ]


def assert_audited(place: Place, change: Change) -> None:
    """One row says who changed something of the team, from where and by which way."""
    rows = Entry.objects.filter(actor="me").values_list("actor_id", "team_id", "address", "channel")
    channel = Channel.REST if change.route.startswith("api/") else Channel.PAGE
    wanted = [(place.me.pk, place.team.pk, "127.0.0.1", channel)]
    assert list(rows) == wanted, (change.method, change.route)


def test_every_address_that_changes_what_is_a_teams_is_entered() -> None:
    scene, entered = Scene(), {(c.method, c.route) for c in CHANGES}
    user = a_user("boss", team=scene.team, role=MM)
    token, browser = f"Bearer {a_token(user)}", SiteClient()
    browser.force_login(user)
    there = {route for route, _ in leaves(get_resolver())}
    for route in (r for r, kind in ENDPOINTS.items() if kind == TEAM and r in there):
        for method in METHODS[1:]:
            client = SiteClient() if route.startswith("api/") else browser
            with transaction.atomic():
                status = ask(client, method, scene.url(route), token).status_code
                transaction.set_rollback(True)
            if status != 405 and route not in OTHERWISE:
                assert (method, route) in entered, f"enter {method} {route} in CHANGES"


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("owner", ["me", "mate"])
def test_a_change_is_made_by_who_has_the_role_and_refused_to_others(who: str, owner: str) -> None:
    role = WHO[who]
    place = Place(role)
    for change in CHANGES:
        with transaction.atomic():
            thing = change.made(place, getattr(place, owner))
            before, least = things(place), change.own if owner == "me" else change.mates
            url = change.url(place, thing)
            status = place.sent(change, url)
            if LADDER.index(role) >= LADDER.index(least):
                assert status in (200, 201, 204, 302), (change.method, url, status)
                assert things(place) != before, (change.method, url)
                assert_audited(place, change)
            else:
                assert status == (404 if role is None else change.refused), (
                    change.method,
                    url,
                    status,
                )
                assert things(place) == before, (change.method, url)
                assert not Entry.objects.filter(actor="me").exists(), (change.method, url)
            transaction.set_rollback(True)


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("way", ["submit/", "api/v1/jobs/", "api/v1/jobs/bulk/"])
def test_a_member_submits_and_a_viewer_does_not(who: str, way: str) -> None:
    place, data = Place(WHO[who]), job_fields(team="vision", cluster="lab")
    body = {
        "submit/": {**data, "command": "python train.py", "steps_per_epoch": "100", "epochs": "1"},
        "api/v1/jobs/bulk/": {"jobs": [{"job": data}]},
    }.get(way, data)
    status = place.sent(Change("post", way, M, M, body=body), f"/{way}")
    permitted = LADDER.index(WHO[who]) >= LADDER.index(M)
    assert Job.objects.exists() == permitted
    assert status == {
        ("submit/", True): 302, ("submit/", False): 422,
        ("api/v1/jobs/", True): 201, ("api/v1/jobs/", False): 400,
        ("api/v1/jobs/bulk/", True): 201, ("api/v1/jobs/bulk/", False): 207,
    }[way, permitted]  # fmt: skip


def test_a_viewer_reads_which_role_submits() -> None:
    place = Place(TeamRole.VIEWER)
    answer = SiteClient().post(
        "/api/v1/jobs/",
        job_fields(team="vision", cluster="lab"),
        content_type="application/json",
        headers={"Authorization": place.token},
    )
    said = answer.json()["error"]["fields"]["team"]
    assert said == ["only members of a team submit jobs; ask an operator to make you one"]


@pytest.mark.parametrize("who", WHO)
def test_a_study_is_published_to_a_team_by_its_members_and_kept_to_oneself_by_anybody(
    who: str,
) -> None:
    place = Place(WHO[who])
    change = Change("post", "api/v1/simulations/", M, M, body=a_study(team="vision"))
    permitted = LADDER.index(WHO[who]) >= LADDER.index(M)
    assert place.sent(change, "/api/v1/simulations/") == (201 if permitted else 400)
    change = Change("post", "api/v1/simulations/", M, M, body=a_study())
    assert place.sent(change, "/api/v1/simulations/") == 201


def test_a_role_taken_away_is_over_at_the_next_request() -> None:
    place = Place(TeamRole.MAINTAINER)
    mine, theirs = place.job(place.me), place.job(place.mate)
    study = place.study(place.me, "done")
    row = Membership.objects.get(user=place.me)

    def status(path: str, method: str = "post") -> int:
        return int(ask(SiteClient(), method, f"/api/v1/{path}", place.token).status_code)

    assert status(f"jobs/{theirs.pk}/hold/") == 200
    Membership.objects.filter(pk=row.pk).update(role=TeamRole.MEMBER)
    assert (status(f"jobs/{theirs.pk}/release/"), status(f"jobs/{mine.pk}/hold/")) == (403, 200)
    Membership.objects.filter(pk=row.pk).update(role=TeamRole.VIEWER)
    assert status(f"jobs/{mine.pk}/release/") == 403
    assert status(f"jobs/{mine.pk}/", "get") == 200
    row.delete()
    assert status(f"jobs/{mine.pk}/", "get") == 404
    assert status(f"simulations/{study.pk}/", "get") == 404
    assert AuthToken.objects.filter(user=place.me).exists()


def test_a_study_of_ones_own_is_for_its_owner_and_operators_alone() -> None:
    place = Place(TeamRole.MAINTAINER)
    study = a_done_simulation(place.mate)
    for user, status in ((place.me, 404), (a_user("boss", operator=True), 204)):
        url, token = f"/api/v1/simulations/{study.pk}/", f"Bearer {a_token(user)}"
        assert ask(SiteClient(), "delete", url, token).status_code == status


BUTTONS = {"hold", "cancel", "clone", "release", "requeue", "share", "delete"}


@pytest.mark.parametrize(
    ("role", "owner", "shown", "words"),
    [
        (TeamRole.VIEWER, "me", set(), "needs the role member"),
        (TeamRole.MEMBER, "mate", {"clone"}, "needs the role maintainer in team vision"),
        (TeamRole.MEMBER, "me", {"clone", "hold", "cancel"}, ""),
        (TeamRole.MAINTAINER, "mate", {"clone", "hold", "cancel"}, ""),
    ],
)
def test_pages_show_the_buttons_that_the_role_permits_and_else_the_reason(
    role: TeamRole, owner: str, shown: set[str], words: str
) -> None:
    place = Place(role)
    user = getattr(place, owner)
    pages = {
        f"/jobs/{place.job(user).pk}/": shown,
        f"/arrays/{place.array(user).pk}/": shown - {"clone"},
        f"/simulations/{place.study(user, 'done').pk}/": (
            {"share", "delete"} if "hold" in shown else set()
        ),
    }
    for url, expected in pages.items():
        page = place.client.get(url).content.decode()
        assert {name for name in BUTTONS if f'id="{name}"' in page} == expected, url
        assert ("You may not change it" in page) == bool(words), url
        assert words in page
        assert ('aria-label="Submit a job"' in page) == (role != TeamRole.VIEWER)


def test_the_page_of_teams_shows_roles_and_its_buttons_to_operators_alone() -> None:
    place = Place(TeamRole.MAINTAINER)
    a_team("speech")
    page = place.client.get("/teams/").content.decode()
    assert "Maintainer" in page
    assert "wandb" in page
    assert "speech" not in page
    assert "Let in" not in page
    boss = SiteClient()
    boss.force_login(a_user("boss", operator=True))
    page = boss.get("/teams/").content.decode()
    assert "speech" in page
    assert "Let in" in page
    for body, said in {
        ("mate", "maintainer"): "mate is maintainer of vision.",
        ("mate", "out"): "mate is no longer in vision.",
        ("nobody", "member"): "there is nobody called",
        ("mate", "king"): "choose viewer, member, maintainer",
    }.items():
        data = dict(zip(("username", "role"), body, strict=True))
        assert said in boss.post("/teams/vision/members/", data, follow=True).content.decode()


def test_everybody_reads_their_roles_by_rest() -> None:
    place = Place(TeamRole.VIEWER)
    headers = {"Authorization": place.token}
    assert SiteClient().get("/api/v1/me/", headers=headers).json()["roles"] == {"vision": "viewer"}
    team = SiteClient().get("/api/v1/teams/vision/", headers=headers).json()
    assert {"username": "mate", "role": "member"} in team["roles"]
