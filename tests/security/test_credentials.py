"""Tokens have scopes and ends, passwords that somebody else has given are changed first."""

from collections.abc import Mapping
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from knox.models import AuthToken
from rest_framework.test import APIClient, APIRequestFactory
from rest_framework.views import APIView

from clusters.models import Cluster, Node
from controlplane.web.credentials import tokens
from controlplane.web.credentials.passwords import is_one_time, make_one_time
from controlplane.web.models import Scope, TokenGrant
from controlplane.web.rest.defaults import needed_scope
from jobs.models import Job, Membership, TeamRole
from jobs.people import save_person
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_jobs import api, job_fields
from tests.builders_studies import a_done_simulation

pytestmark = pytest.mark.django_db
TOKENS = "/api/v1/tokens/"
PASSWORD, OTHER = "a long password", "quite another one"


@pytest.fixture
def node() -> Node:
    return a_node(a_cluster(name="lab"))


@pytest.fixture
def ada(node: Node) -> User:
    user = a_user("ada", team=a_team("vision"))
    user.set_password(PASSWORD)
    user.save()
    return user


def of(user: User, scope: str) -> APIClient:
    """A client with a token of this scope."""
    return api(token=tokens.issue(user, Scope(scope), timedelta(hours=1)).token)


def login(**fields: Any) -> Any:
    body = {"username": "ada", "password": PASSWORD, **fields}
    return APIClient().post(TOKENS, body, format="json")


def error(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["detail"]


# Scopes


def test_a_token_for_reading_reads_and_changes_nothing(ada: User, node: Node) -> None:
    job = a_job(node.cluster, team=ada.teams.get(), user=ada)
    reader = of(ada, "read")
    for path in (f"/api/v1/jobs/{job.pk}/", f"/api/v1/jobs/{job.pk}/logs/", "/api/v1/nodes/"):
        assert reader.get(path).status_code == 200
    needed = "this needs a token of the scope submit; yours has the scope read"
    for path in ("/api/v1/jobs/", f"/api/v1/jobs/{job.pk}/cancel/", "/api/v1/jobs/bulk/"):
        assert error(reader.post(path, job_fields(), format="json")) == (403, needed)
    assert reader.put("/api/v1/teams/vision/secrets/x/").status_code == 403
    assert reader.delete(f"{TOKENS}abc/").status_code == 403
    assert list(Job.objects.all()) == [job]
    assert of(ada, "submit").post("/api/v1/jobs/", job_fields(), format="json").status_code == 201


def test_what_operators_do_needs_the_scope_of_operators(node: Node) -> None:
    grace = a_user("grace", operator=True, team=a_team("vision"))
    changes: Mapping[str, str] = {
        f"/api/v1/nodes/{node.pk}/cordon/": "post",
        "/api/v1/clusters/lab/": "patch",
        "/api/v1/enrolment-tokens/": "post",
        "/api/v1/teams/vision/": "patch",
    }
    needed = "this needs a token of the scope operate; yours has the scope submit"
    for path, method in changes.items():
        assert error(getattr(of(grace, "submit"), method)(path)) == (403, needed), path
    assert of(grace, "operate").post(f"/api/v1/nodes/{node.pk}/cordon/").status_code == 200


def test_a_token_for_submitting_opens_nothing_to_others_and_ends_no_other_token(ada: User) -> None:
    Membership.objects.filter(user=ada).update(role=TeamRole.MAINTAINER)
    simulation = a_done_simulation(ada)
    other = tokens.issue(ada, Scope.OPERATE, timedelta(hours=1)).row.token_key
    submitter = of(ada, "submit")
    secret, share = (
        "/api/v1/teams/vision/secrets/hub/",
        f"/api/v1/simulations/{simulation.pk}/share/",
    )
    calls = ((secret, "put"), (secret, "delete"), (share, "post"), (share, "delete"))
    needed = "this needs a token of the scope operate; yours has the scope submit"
    for path, method in (*calls, (f"{TOKENS}{other}/", "delete")):
        answer = getattr(submitter, method)(path, {"value": "x"}, format="json")
        assert error(answer) == (403, needed), (method, path)
    assert tokens.tokens_of(ada).count() == 2
    assert submitter.delete(f"/api/v1/simulations/{simulation.pk}/").status_code == 204
    assert submitter.delete(f"{TOKENS}current/").status_code == 204


def test_changes_that_name_no_scope_need_the_largest() -> None:
    request = APIRequestFactory().post("/")
    request.parser_context = {"view": APIView()}
    assert needed_scope(request) == Scope.OPERATE


def test_no_scope_gives_more_than_its_owner_may(ada: User, node: Node) -> None:
    answer = of(ada, "operate").post(f"/api/v1/nodes/{node.pk}/cordon/")
    assert answer.status_code == 403
    assert "operators" in error(answer)[1]


def test_every_token_ends_itself(ada: User) -> None:
    reader = of(ada, "read")
    assert reader.delete(f"{TOKENS}current/").status_code == 204
    assert reader.get("/api/v1/me/").status_code == 401


def test_a_token_older_than_scopes_is_good_for_everything(ada: User) -> None:
    old = api(token=AuthToken.objects.create(ada)[1])
    assert not TokenGrant.objects.exists()
    assert old.post("/api/v1/jobs/", job_fields(), format="json").status_code == 201
    (listed,) = old.get(TOKENS).json()
    assert listed["scope"] == "operate"


# Lifetimes and last use


def test_a_token_ends_after_the_default_lifetime_and_lives_no_longer_than_the_most(
    ada: User,
) -> None:
    usual = login()
    (row,) = AuthToken.objects.all()
    assert (usual.status_code, usual.json()["scope"]) == (201, "operate")
    assert row.expiry - row.created == pytest.approx(timedelta(days=90), abs=timedelta(minutes=1))
    answer = login(valid_h=24 * 365 + 1)
    assert answer.status_code == 400
    assert "valid_h: must be at most 8760 hours (365 days)" in error(answer)[1]
    assert login(valid_h=24 * 365, scope="read").json()["scope"] == "read"
    assert login(scope="root").status_code == 400


@pytest.mark.parametrize("expiry", [None, timedelta(seconds=-1)])
def test_a_token_without_an_end_opens_as_little_as_one_that_has_ended(
    ada: User, expiry: timedelta | None
) -> None:
    token = AuthToken.objects.create(ada, expiry=expiry)[1]
    assert api(token=token).get("/api/v1/me/").status_code == 401


def test_the_last_use_is_noted_and_not_with_every_request(
    ada: User,
) -> None:
    client = of(ada, "read")
    assert tokens.tokens_of(ada).get().grant.last_used_at is None
    client.get("/api/v1/me/")
    (listed,) = client.get(TOKENS).json()
    assert listed["last_used_at"] is not None
    with CaptureQueriesContext(connection) as asked:
        client.get("/api/v1/me/")
    assert [query["sql"] for query in asked if query["sql"].startswith(("UPDATE", "INSERT"))] == []
    TokenGrant.objects.update(last_used_at=timezone.now() - timedelta(hours=1))
    client.get("/api/v1/me/")
    used = tokens.last_used_at(tokens.tokens_of(ada).get())
    assert used is not None
    assert timezone.now() - used < timedelta(minutes=1)


def test_the_upgrade_ends_no_token_before_the_longest_lifetime(ada: User) -> None:
    migrate = MigrationExecutor(connection).loader.get_migration("web", "0001_scopes_of_tokens")
    run = migrate.operations[-1]
    soon = timezone.now() + timedelta(days=1)
    for expiry in (None, timedelta(days=9999), timedelta(days=1)):
        AuthToken.objects.create(ada, expiry=expiry)
    run.code(MigrationExecutor(connection).loader.project_state().apps, None)  # type: ignore[attr-defined]  # RunPython's
    ends = sorted(AuthToken.objects.values_list("expiry", flat=True))
    most = timezone.now() + timedelta(days=365)
    for end, wanted in zip(ends, (soon, most, most), strict=True):
        assert end == pytest.approx(wanted, abs=timedelta(minutes=1))


# Passwords


def test_a_new_password_ends_tokens_and_other_sessions(ada: User, client: Client) -> None:
    other = Client()
    client.force_login(ada)
    other.force_login(ada)
    reader = of(ada, "read")
    fields = {"old_password": PASSWORD, "new_password1": OTHER, "new_password2": OTHER}
    assert client.post("/password/", fields).status_code == 302
    assert client.get("/").status_code == 200
    assert other.get("/").status_code == 302
    assert reader.get("/api/v1/me/").status_code == 401


def test_the_renewal_of_a_hash_ends_no_token(ada: User, settings: Any) -> None:
    settings.PASSWORD_HASHERS = [
        "django.contrib.auth.hashers.PBKDF2PasswordHasher", *settings.PASSWORD_HASHERS
    ]  # fmt: skip
    before = ada.password
    reader = of(ada, "read")
    assert login().status_code == 201
    ada.refresh_from_db()
    assert ada.password != before
    assert reader.get("/api/v1/me/").status_code == 200


@pytest.mark.parametrize("new", ["ada-ada-ada", "password123", "short", PASSWORD])
def test_a_password_like_the_name_or_known_or_short_or_the_old_one_is_refused(
    ada: User, client: Client, new: str
) -> None:
    User.objects.filter(pk=ada.pk).update(username="ada-ada-ad")
    client.force_login(ada)
    fields = {"old_password": PASSWORD, "new_password1": new, "new_password2": new}
    assert client.post("/password/", fields).status_code == 200
    answer = login(username="ada-ada-ad", new_password=new)
    assert answer.status_code == 400
    assert "new_password" in answer.json()["error"]["fields"]
    ada.refresh_from_db()
    assert ada.check_password(PASSWORD)


@pytest.mark.parametrize("password", ["short", "password123", "superadmin1"])
def test_a_command_without_questions_takes_no_weak_password(
    monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", password)
    with pytest.raises(CommandError, match=r"DJANGO_SUPERUSER_PASSWORD: .*(short|guess)"):
        call_command("createsuperuser", "--noinput", username="superadmin", email="")
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", OTHER)
    call_command("createsuperuser", "--noinput", username="superadmin", email="")
    assert User.objects.get().check_password(OTHER)


def test_who_comes_with_a_one_time_password_only_gets_to_change_it(
    client: Client, node: Node
) -> None:
    password = save_person("grace")
    assert password is not None
    assert client.post("/login/", {"username": "grace", "password": password}).status_code == 302
    for path in ("/", "/nodes/", "/timeline/figure.json", "/admin/"):
        answer = client.get(path)
        assert (answer.status_code, answer["Location"]) == (302, "/password/"), path
    assert error(client.get("/api/v1/jobs/"))[0] == 403
    assert "given to you for one login" in client.get("/password/").text
    same = {"old_password": password, "new_password1": password, "new_password2": password}
    assert "must be another one" in client.post("/password/", same).text
    fields = {**same, "new_password1": OTHER, "new_password2": OTHER}
    assert client.post("/password/", fields).status_code == 302
    assert client.get("/").status_code == 200
    assert not is_one_time(User.objects.get(username="grace"))


def test_a_token_for_a_one_time_password_needs_a_new_one(ada: User) -> None:
    make_one_time(ada)
    answer = login()
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "one_time_password")
    assert login(new_password=PASSWORD).status_code == 400
    assert login(new_password=OTHER).status_code == 201
    assert login().status_code == 401
    assert login(password=OTHER).status_code == 201


def test_a_password_that_an_operator_sets_is_for_one_time(ada: User, client: Client) -> None:
    admin = User.objects.create_superuser("root", password=PASSWORD)
    client.force_login(admin)
    reader = of(ada, "read")
    fields = {"password1": OTHER, "password2": OTHER, "usable_password": "true"}
    assert client.post(f"/admin/auth/user/{ada.pk}/password/", fields).status_code == 302
    assert is_one_time(ada)
    assert reader.get("/api/v1/me/").status_code == 401
    new = {"username": "new", "password1": OTHER, "password2": OTHER, "usable_password": "true"}
    assert client.post("/admin/auth/user/add/", new).status_code == 302
    assert is_one_time(User.objects.get(username="new"))


@pytest.mark.parametrize("before", ["", "_0A"], ids=["plain", "a quoted line break"])
def test_the_administration_changes_nobodys_own_password_without_the_old_one(
    client: Client, before: str
) -> None:
    admin = User.objects.create_superuser("root", password=PASSWORD)
    client.force_login(admin)
    fields = {"password1": OTHER, "password2": OTHER, "usable_password": "true"}
    answer = client.post(f"/admin/auth/user/{before}{admin.pk}/password/", fields)
    assert (answer.status_code, answer["Location"]) == (302, "/password/")
    admin.refresh_from_db()
    assert admin.check_password(PASSWORD)


def test_an_operator_gives_a_new_one_time_password_by_command(ada: User) -> None:
    said = StringIO()
    call_command("set_person", "ada", "--new-password", stdout=said)
    ada.refresh_from_db()
    assert is_one_time(ada)
    password = said.getvalue().split("one-time password ")[1].split()[0]
    assert ada.check_password(password)


# The page of one's tokens


def test_the_page_lists_ones_own_tokens_and_revokes_them(ada: User, client: Client) -> None:
    reader, strangers = of(ada, "read"), of(a_user("stranger"), "submit")
    reader.get("/api/v1/me/")
    client.force_login(ada)
    row = tokens.tokens_of(ada).get()
    page = client.get("/tokens/").text
    assert row.token_key in page
    assert "read" in page
    other = tokens.tokens_of(User.objects.get(username="stranger")).get().token_key
    assert other not in page
    assert client.post(f"/tokens/{other}/revoke/").status_code == 404
    assert client.post(f"/tokens/{row.token_key}/revoke/").status_code == 302
    assert reader.get("/api/v1/me/").status_code == 401
    assert strangers.get("/api/v1/me/").status_code == 200
    assert Cluster.objects.exists()
