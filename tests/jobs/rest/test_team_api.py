"""REST: who am I, teams, secrets and tokens."""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from knox.models import AuthToken
from rest_framework.test import APIClient

from clusters.models import RescheduleEvent
from jobs.models import Secret, Team, TeamRole
from jobs.secrets import reveal
from tests.builders import a_cluster, a_job, a_team, a_user
from tests.builders_jobs import a_token, api

pytestmark = pytest.mark.django_db
TEAM = "/api/v1/teams/research/"
SECRETS = "/api/v1/teams/research/secrets/"
TOKENS = "/api/v1/tokens/"
PASSWORD = "a long password"


@pytest.fixture
def team() -> Team:
    return a_team("research")


@pytest.fixture
def user(team: Team) -> User:
    return a_user("ada", team=team, role=TeamRole.MAINTAINER)


@pytest.fixture
def client(user: User) -> APIClient:
    return api(user)


def test_me_says_name_teams_and_rank(client: APIClient, team: Team) -> None:
    assert client.get("/api/v1/me/").json() == {
        "username": "ada",
        "operator": False,
        "teams": ["research"],
        "roles": {"research": "maintainer"},
    }
    a_team("other")
    operator = api(a_user("root", operator=True)).get("/api/v1/me/").json()
    root = {"username": "root", "operator": True, "roles": {}}
    assert operator == {**root, "teams": ["other", "research"]}


def test_teams_are_ones_own(client: APIClient, team: Team) -> None:
    a_user("bob", team=team)
    a_team("other")
    answer = client.get("/api/v1/teams/").json()
    assert [(t["name"], sorted(t["members"])) for t in answer] == [("research", ["ada", "bob"])]


def test_a_team_is_shown_to_its_members_and_set_by_operators(
    client: APIClient, user: User, team: Team
) -> None:
    operator, stranger = (
        api(a_user("root", operator=True)),
        api(a_user("eve", team=a_team("other"))),
    )
    a_job(cluster := a_cluster(), team=team, user=user)
    limits = {
        "max_tardiness_weight": 1.0, "max_priority": 10, "max_weight": 10.0,
        "max_queued_jobs": None, "max_gpus": None, "max_submissions_per_minute": None,
    }  # fmt: skip
    settings = {"weight": 1.0, "order": "fairness", **limits}
    roles = [{"username": "ada", "role": "maintainer"}]
    shown = {"name": "research", **settings, "members": ["ada"], "roles": roles}
    assert client.get(TEAM).json() == shown
    assert client.patch(TEAM, {"weight": 9}, format="json").status_code == 403
    assert [
        stranger.get(TEAM).status_code,
        stranger.patch(TEAM, {"weight": 9}, format="json").status_code,
    ] == [404, 404]
    assert not RescheduleEvent.objects.exists()
    answer = operator.patch(TEAM, {"weight": 2.5, "order": "fifo"}, format="json")
    assert (answer.status_code, answer.json()) == (200, {**shown, "weight": 2.5, "order": "fifo"})
    assert [event.cluster for event in RescheduleEvent.objects.all()] == [cluster]


def test_limits_of_a_team_are_set_by_operators_and_noted_in_its_history(team: Team) -> None:
    root = a_user("root", operator=True)
    answer = api(root).patch(TEAM, {"max_gpus": 4, "max_priority": 3}, format="json")
    assert (answer.status_code, answer.json()["max_gpus"], answer.json()["max_priority"]) == (
        200,
        4,
        3,
    )
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id) == (root, str(team.pk))
    words = "Changed max_priority from 10 to 3 and max_gpus from None to 4."
    assert entry.get_change_message() == words
    assert api(root).patch(TEAM, {"max_gpus": None}, format="json").json()["max_gpus"] is None


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("weight", 0, "Ensure this value is greater than or equal to 0.001."),
        ("weight", "nan", "A valid number is required."),
        ("weight", 1e7, "Ensure this value is less than or equal to 1000000.0."),
        ("order", "lifo", '"lifo" is not a valid choice.'),
        ("name", "x", f"cannot be set; what can be: weight, order, {', '.join(Team.LIMITS)}"),
        ("max_gpus", -1, "Ensure this value is greater than or equal to 0."),
        ("max_queued_jobs", 0, "Ensure this value is greater than or equal to 1."),
        ("max_weight", 0.5, "Ensure this value is greater than or equal to 1.0."),
        ("max_tardiness_weight", "inf", "A valid number is required."),
    ],
)
def test_what_is_no_setting_of_a_team_is_refused(
    team: Team, field: str, value: object, said: str
) -> None:
    answer = api(a_user("root", operator=True)).patch(TEAM, {field: value}, format="json")
    assert (answer.status_code, answer.json()["error"]["fields"]) == (400, {field: [said]})


def test_a_secret_goes_in_and_never_comes_out(client: APIClient) -> None:
    assert client.put(f"{SECRETS}token/", {"value": "s3cret"}, format="json").status_code == 204
    listed = client.get(SECRETS)
    assert [row["name"] for row in listed.json()] == ["token"]
    assert b"s3cret" not in listed.content
    assert reveal(Secret.objects.get()) == "s3cret"
    assert client.delete(f"{SECRETS}token/").status_code == 204
    assert client.delete(f"{SECRETS}token/").status_code == 404


@pytest.mark.parametrize("body", [{}, {"value": ""}, {"value": 3}, []])
def test_a_secret_without_a_value_is_refused(client: APIClient, body: object) -> None:
    answer = client.put(f"{SECRETS}token/", body, format="json")
    assert answer.status_code == 400
    assert list(answer.json()["error"]["fields"]) == ["value"]


@pytest.mark.parametrize("method", ["get", "put", "delete"])
def test_secrets_of_another_team_do_not_exist_for_strangers(team: Team, method: str) -> None:
    path = SECRETS if method == "get" else f"{SECRETS}token/"
    body = {"value": "x"} if method == "put" else None
    stranger = api(a_user(team=a_team()))
    assert getattr(stranger, method)(path, body, format="json").status_code == 404
    assert getattr(api(), method)(path, body, format="json").status_code == 401
    assert not Secret.objects.exists()


@pytest.mark.parametrize("path", ["/api/v1/me/", "/api/v1/teams/", TOKENS])
def test_nobody_anonymous_sees_anything(path: str) -> None:
    assert api().get(path).status_code == 401


@pytest.mark.parametrize("token", ["x", "0" * 64, "a" * 64, "é", "x" * 5000])
def test_a_wrong_token_is_401(user: User, token: str) -> None:
    answer = api(token=token).get("/api/v1/me/")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] in ("authentication_failed", "not_authenticated")


def test_a_login_gives_a_token_that_works_until_it_is_revoked(user: User) -> None:
    answer = api().post(TOKENS, {"username": "ada", "password": PASSWORD}, format="json")
    assert answer.status_code == 201
    client = api(token=answer.json()["token"])
    assert client.get("/api/v1/me/").json()["username"] == "ada"
    listed = client.get(TOKENS)
    assert [row["id"] for row in listed.json()] == [answer.json()["id"]]
    assert answer.json()["token"].encode() not in listed.content
    assert client.delete(f"{TOKENS}{answer.json()['id']}/").status_code == 204
    assert client.get("/api/v1/me/").status_code == 401


def test_logging_out_revokes_the_requests_own_token(user: User) -> None:
    one, other = api(user), api(user)
    assert one.delete(f"{TOKENS}current/").status_code == 204
    assert (one.get("/api/v1/me/").status_code, other.get("/api/v1/me/").status_code) == (401, 200)


def test_an_expired_token_is_401(user: User) -> None:
    answer = api().post(
        TOKENS, {"username": "ada", "password": PASSWORD, "valid_h": 0.001}, format="json"
    )
    AuthToken.objects.filter(user=user).update(expiry=answer.json()["created"])
    assert api(token=answer.json()["token"]).get("/api/v1/me/").status_code == 401
    assert api(user).get("/api/v1/me/").status_code == 200, "another of the user's tokens"


@pytest.mark.parametrize("password", ["wrong", PASSWORD + " ", "\0"])
def test_a_wrong_password_is_401_and_gives_no_token(user: User, password: str) -> None:
    answer = api().post(TOKENS, {"username": "ada", "password": password}, format="json")
    assert answer.status_code in (400, 401)
    assert not AuthToken.objects.filter(user=user).exists()


def test_a_login_without_password_names_the_field(user: User) -> None:
    answer = api().post(TOKENS, {"username": "ada"}, format="json")
    assert (answer.status_code, list(answer.json()["error"]["fields"])) == (400, ["password"])


def test_an_old_token_does_not_stand_in_the_way_of_a_login(user: User) -> None:
    answer = api(token="0" * 64).post(
        TOKENS, {"username": "ada", "password": PASSWORD}, format="json"
    )
    assert answer.status_code == 201


def test_somebody_who_may_no_longer_log_in_is_401(user: User) -> None:
    token = a_token(user)
    User.objects.update(is_active=False)
    assert api(token=token).get("/api/v1/me/").status_code == 401
    assert (
        api().post(TOKENS, {"username": "ada", "password": PASSWORD}, format="json").status_code
        == 401
    )


def test_tokens_of_others_cannot_be_revoked(user: User, client: APIClient) -> None:
    other = a_user()
    a_token(other)
    key = AuthToken.objects.filter(user=other).get().token_key
    assert client.delete(f"{TOKENS}{key}/").status_code == 404
    assert AuthToken.objects.filter(user=other).count() == 1


@pytest.mark.parametrize("name", ["%00", "a%00b", "..", "%F0%9F%98%80", "x" * 500])
def test_names_that_are_none_are_refused_in_order(client: APIClient, name: str) -> None:
    assert client.put(f"{SECRETS}{name}/", {"value": "x"}, format="json").status_code in (400, 404)
    assert client.delete(f"{SECRETS}{name}/").status_code == 404
    assert client.delete(f"{TOKENS}{name}/").status_code == 404
    assert not Secret.objects.exists()
