"""The audit: a change is one row, which nothing changes, and no secret is in it."""

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core import serializers
from django.core.management import call_command, get_commands
from django.db import transaction
from django.test import Client
from django.urls import resolve
from django.utils import timezone

from clusters.models import EnrolmentToken, GpuType
from clusters.services.enrolment import issue_enrolment_token
from controlplane.audit.models import AppendOnlyError, Channel, Entry
from controlplane.audit.record import HIDDEN, plain_values, record
from controlplane.operations import retention
from jobs import services
from jobs.models import Job, Secret
from tests.builders import a_cluster, a_gpu_type, a_job, a_kind, a_node, a_team, a_user
from tests.builders_admin import admin_path
from tests.builders_asgi import SiteClient
from tests.builders_jobs import a_token
from tests.builders_rest import SERIES
from tests.builders_studies import a_simulation
from tests.security.test_every_endpoint import METHODS, OPERATORS, WRITES, Scene, ask, routes

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"
OF_EVE = {"username": "eve", "ip_address": "192.0.2.1"}


def the_row() -> Entry:
    """The only row."""
    row: Entry = Entry.objects.get()
    return row


def rest(user: User, method: str, path: str, body: Any = "", **headers: str) -> Any:
    headers = {"Authorization": f"Bearer {a_token(user)}", **headers}
    sending: Callable[..., Any] = getattr(SiteClient(), method)
    return sending(f"/api/v1/{path}", body, content_type="application/json", headers=headers)


BY_REST: list[tuple[str, str, Any, str, Any, Any]] = [
    ("patch", "clusters/lab/", {"period_s": 60}, "cluster.change",
     {"period_s": 300.0}, {"period_s": 60.0}),
    ("post", "clusters/lab/reschedule/", None, "cluster.reschedule", {}, {}),
    ("post", "nodes/{node}/cordon/", {"reason": "loud"}, "node.cordon",
     {"state": "ready", "reason": ""}, {"state": "cordoned", "reason": "loud"}),
    ("post", "nodes/{node}/role/", {"role": "both"}, "node.role",
     {"role": "production"}, {"role": "both"}),
    ("post", "nodes/{node}/slots/", {"slots": 2}, "node.slots",
     {"GPU-volta-0": 1}, {"GPU-volta-0": 2}),
    ("patch", "gpu-types/V100/", {"price_per_hour": "3"}, "gpu_type.change",
     {"price_per_hour": "0.000000"}, {"price_per_hour": "3.000000"}),
    ("post", "clusters/lab/tariffs/", {"csv": SERIES}, "tariff.add", None, None),
    ("post", "enrolment-tokens/", {"cluster": "lab"}, "enrolment.add", None, None),
    ("delete", "enrolment-tokens/{enrolment}/", None, "enrolment.delete", None, None),
    ("post", "kinds/{kind}/forget/", None, "kind.forget", {}, {}),
    ("post", "kinds/{kind}/publish/", None, "kind.publish", {}, {"numbers": 1, "teams": 1}),
    ("post", "kinds/{published}/withdraw/", None, "kind.withdraw", {}, {"teams": 0}),
    ("patch", "teams/vision/", {"weight": 3}, "team.change", {"weight": 1.0}, {"weight": 3.0}),
    ("post", "nodes/{node}/drain/", {"reason": "rack"}, "node.drain", None, None),
    ("post", "nodes/{cordoned}/uncordon/", None, "node.uncordon",
     {"state": "cordoned"}, {"state": "ready"}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "action", "old", "new"), BY_REST)
def test_a_change_by_rest_is_a_row_with_old_and_new_value(
    boss: User, method: str, path: str, body: Any, action: str, old: Any, new: Any
) -> None:
    cluster, kind = a_cluster(name="lab", period_s=300.0), a_kind(steps_per_s={("V100", 1): 1.0})
    node = a_node(cluster, name="volta", gpus=1)
    a_job(cluster, team=a_team("vision"), kind=kind)
    issue_enrolment_token(cluster)
    cordoned = a_node(cluster, state="cordoned")
    names = {"node": node.pk, "cordoned": cordoned.pk, "kind": kind.pk}
    names["published"] = a_kind().pk
    names["enrolment"] = EnrolmentToken.objects.get().pk
    Entry.objects.all()._raw_delete("default")
    answer = rest(boss, method, path.format(**names), "" if body is None else body)
    assert answer.status_code < 300, answer.content
    row = the_row()
    assert (row.action, row.actor, row.channel) == (action, "boss", Channel.REST)
    assert row.address == "127.0.0.1"
    if new is not None:
        assert (row.old, row.new) == (old, new)


def test_every_address_by_which_operators_change_something_is_tried_above(boss: User) -> None:
    scene, token, tried = Scene(), f"Bearer {a_token(boss)}", set[tuple[str, str]]()
    ids = {name: uuid4() for name in ("node", "cordoned")} | {
        "kind": 1, "published": 1, "enrolment": 1
    }  # fmt: skip
    for method, path, *_ in BY_REST:
        tried.add((method, resolve(f"/api/v1/{path.format(**ids)}").route.replace("^", "")))
    for route in routes(OPERATORS, WRITES, under="api/v1/"):
        for method in METHODS[1:]:
            with transaction.atomic():
                status = ask(SiteClient(), method, scene.url(route), token).status_code
                transaction.set_rollback(True)
            known = (method, route.replace("^", "")) in tried
            assert status == 405 or known, f"enter {method} {route} in BY_REST"


def test_a_change_that_changes_nothing_is_no_row(boss: User) -> None:
    a_cluster(name="lab", period_s=60.0)
    assert rest(boss, "patch", "clusters/lab/", {"period_s": 60}).status_code == 200
    assert not Entry.objects.exists()


def test_an_operator_on_a_page_and_our_command_line_are_told_apart(
    boss: User, page: Client
) -> None:
    node = a_node(a_cluster())
    page.post(f"/nodes/{node.pk}/cordon/", {"reason": "loud"})
    agent = {"User-Agent": "loadmaster/0.2"}
    rest(boss, "post", f"nodes/{node.pk}/uncordon/", **agent)
    assert [(e.action, e.channel) for e in Entry.objects.order_by("pk")] == [
        ("node.cordon", Channel.PAGE), ("node.uncordon", Channel.CLI)
    ]  # fmt: skip


def test_a_change_that_fails_leaves_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    user = a_user(team=a_team())
    job = a_job(a_cluster(), team=user.teams.get(), user=user)

    def fail(*args: Any, **named: Any) -> None:
        assert Job.objects.get().state == "cancelled"
        raise RuntimeError("the database is gone")

    monkeypatch.setattr(services, "record_values", fail)
    with pytest.raises(RuntimeError):
        services.job_cancel(job, user)
    assert Job.objects.get().state == "queued", "no change without its row"
    monkeypatch.undo()
    monkeypatch.setattr(services, "request_reschedule", fail)
    with pytest.raises(RuntimeError):
        services.job_cancel(job, user)
    assert not Entry.objects.exists(), "no row without its change"


COMMANDS = {
    ("set_person", "ada", "--team", "vision"): ["member.add", "person.add"],
    ("set_person", "eve", "--operator"): ["person.change"],
    ("set_person", "eve", "--team", "vision", "--role", "viewer"): ["member.role"],
    ("set_person", "eve", "--leave", "vision"): ["member.remove"],
    ("set_person", "eve", "--disable"): ["person.disable", "credential.end"],
    ("set_person", "eve", "--end-tokens"): ["credential.end"],
    ("set_person", "eve", "--new-password"): ["person.password"],
    ("set_team", "speech"): ["team.add"],
    ("set_team", "vision", "--weight", "2"): ["team.change"],
    ("set_team", "vision"): [],
    ("set_cluster", "new"): ["cluster.add"],
    ("set_cluster", "lab", "--lease-s", "77"): ["cluster.change"],
    ("set_gpu_type", "V100", "--idle-w", "33"): ["gpu_type.change"],
    ("set_pue", "lab", "1.2"): ["pue.add"],
    ("set_tariff", "lab", "0.3"): ["tariff.add"],
    ("enrol_token", "lab"): ["enrolment.add"],
    ("revoke_node", "lab", "volta"): ["node.revoke"],
    ("rotate_secrets",): ["secret.rotate"],
    ("createsuperuser", "--no-input", "--username", "root", "--email", "r@x.io"): ["person.add"],
    ("bootstrap",): ["server.bootstrap"],
    ("prune",): ["server.prune"],
    ("axes_reset",): ["lockout.end"],
    ("axes_reset_ip", "192.0.2.1"): ["lockout.end"],
    ("axes_reset_username", "eve"): ["lockout.end"],
    ("axes_reset_username", "ada"): [],
    ("axes_reset_ip_username", "192.0.2.1", "eve"): ["lockout.end"],
    ("axes_reset_logs", "--age", "0"): ["server.prune"],
    ("axes_reset_failure_logs", "--age", "0"): ["server.prune"],
}  # fmt: skip
TRIED_ELSEWHERE = {"changepassword", "restore"}
"""Commands whose rows have tests of their own."""
CHANGE_NOTHING = {
    "axes_list_attempts", "backup", "costs_csv", "generateschema", "leases", "list_texts",
    "recompute_cost", "replay_round", "simulate", "spectacular", "swf", "wait_for_database",
    # They start servers, whose changes are rows.
    "demo", "embedded", "runserver",
}  # fmt: skip


@pytest.mark.parametrize(("command", "actions"), COMMANDS.items(), ids=str)
def test_a_command_on_the_server_is_a_row_of_the_systems_user(
    command: tuple[str, ...], actions: list[str]
) -> None:
    a_node(a_cluster(name="lab"), name="volta", gpus=0)
    a_gpu_type()
    a_token(a_user("eve", team=a_team("vision")))
    AccessAttempt.objects.create(**OF_EVE, failures_since_start=9)
    AccessFailureLog.objects.create(**OF_EVE)
    AccessLog.objects.create(**OF_EVE)
    Session.objects.create(session_key="old", expire_date=timezone.now() - timedelta(days=1))
    call_command(*command, stdout=StringIO())
    rows = list(Entry.objects.order_by("pk"))
    assert [row.action for row in rows] == actions
    for row in rows:
        assert (row.channel, row.actor_id) == (Channel.COMMAND, None)
        assert row.actor.endswith(" (system)")
        assert row.address


def test_every_command_that_is_not_djangos_is_tried_above_or_changes_nothing() -> None:
    there = {name for name, app in get_commands().items() if not app.startswith("django.")}
    # Ours, by Django's names, come before Django's.
    assert {"changepassword", "createsuperuser"} < there
    tried = {name for name, *_ in COMMANDS} | TRIED_ELSEWHERE
    assert there == tried | CHANGE_NOTHING, "enter it in COMMANDS or CHANGE_NOTHING"
    assert not tried & CHANGE_NOTHING


def test_an_account_unlocked_on_the_server_is_named() -> None:
    AccessAttempt.objects.create(**OF_EVE, failures_since_start=9)
    AccessAttempt.objects.create(ip_address="192.0.2.1", username="ada", failures_since_start=9)
    call_command("axes_reset_ip_username", "192.0.2.1", "eve", stdout=StringIO())
    assert (the_row().thing, the_row().new) == ("eve 192.0.2.1", {"attempts": 1})
    call_command("axes_reset", stdout=StringIO())
    assert Entry.objects.latest("pk").thing == "all accounts"
    assert not AccessAttempt.objects.exists()


def test_a_password_set_on_the_server_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    a_user("eve")
    monkeypatch.setattr("getpass.getpass", lambda prompt="": PASSWORD)
    call_command("changepassword", "eve", stdout=StringIO())
    assert (the_row().action, the_row().thing) == ("person.password", "eve")
    assert User.objects.get(username="eve").check_password(PASSWORD)


def test_no_secret_is_in_any_row(page: Client, boss: User) -> None:
    team = a_team("vision")
    page.post(admin_path(Secret, "add"), {"team": team.pk, "name": "hub", "value": PASSWORD})
    body = json.dumps({"value": PASSWORD})
    assert rest(boss, "put", "teams/vision/secrets/hub/", body).status_code == 204
    made = {"username": "ada", "password1": PASSWORD, "password2": PASSWORD}
    page.post(admin_path(User, "add"), {**made, "usable_password": "true"})
    ada = User.objects.get(username="ada")
    again = {"password1": PASSWORD + "2", "password2": PASSWORD + "2", "usable_password": "true"}
    answer = page.post(f"/admin/auth/user/{ada.pk}/password/", again)
    assert answer.status_code == 302, answer.content.decode()[-3000:]
    login = {"username": "ada", "password": PASSWORD + "2", "new_password": PASSWORD + "3"}
    answer = SiteClient().post("/api/v1/tokens/", login, content_type="application/json")
    token = answer.json()["token"]
    ours = SiteClient()
    ours.force_login(User.objects.get(pk=ada.pk))
    changed = {"old_password": PASSWORD + "3"}
    changed |= {"new_password1": PASSWORD + "4", "new_password2": PASSWORD + "4"}
    assert ours.post("/password/", changed).status_code == 302
    actions = [row.action for row in Entry.objects.order_by("pk")]
    assert actions == [
        "secret.add", "secret.change", "user.add", "user.change", "person.password",
        "credential.add", "person.password",
    ]  # fmt: skip
    assert Entry.objects.get(action="credential.add").actor == "ada"
    everything = serializers.serialize("json", Entry.objects.all())
    for secret in (PASSWORD, token, ada.password, User.objects.get(pk=ada.pk).password):
        assert secret not in everything
    assert Entry.objects.get(action="user.add").new["username"] == "ada"


def test_values_are_short_and_secrets_hidden_at_any_depth() -> None:
    given = {"api_token": "x", "value_of_time": 2, "policy": {"password": "x", "seed": 3}}
    assert plain_values({**given, "text": "y" * 9000}) == {
        "api_token": HIDDEN, "value_of_time": 2, "policy": {"password": HIDDEN, "seed": 3},
        "text": "y" * 500,
    }  # fmt: skip


def test_a_row_is_neither_changed_nor_deleted() -> None:
    record("cluster.change", "lab")
    row = the_row()
    row.actor = "nobody"
    for attempt in (
        row.save, row.delete, Entry.objects.all().delete,
        lambda: Entry.objects.update(actor="nobody"),
        lambda: Entry.objects.bulk_update([row], ["actor"]),
    ):  # fmt: skip
        with pytest.raises(AppendOnlyError), transaction.atomic():
            attempt()
    assert the_row().actor != "nobody"


def test_retention_lets_rows_go_after_the_configured_time(settings: Any) -> None:
    now = timezone.now()
    for days in (10, 40, 500):
        record("cluster.change", f"{days} days")
        newest = Entry.objects.latest("pk")
        Entry.objects.filter(pk=newest.pk)._raw_delete("default")
        newest.at = now - timedelta(days=days)
        Entry.objects.bulk_create([newest])
    assert retention.prune(now, names=("audit",)) == {"audit": 1}
    settings.KEEP_DAYS = {**settings.KEEP_DAYS, "audit": 0.0}
    assert retention.prune(now, names=("audit",)) == {}
    settings.KEEP_DAYS = {**settings.KEEP_DAYS, "audit": 30.0}
    assert retention.prune(now, names=("audit",)) == {"audit": 1}
    assert the_row().thing == "10 days"


def test_a_study_is_a_row_from_its_begin_to_its_end() -> None:
    user = a_user("ada", team=a_team("vision"))
    study = a_simulation(user, study={"team": "vision"})
    token = user
    for verb in ("share", "share", "cancel", "cancel"):
        rest(token, "post", f"simulations/{study.pk}/{verb}/")
    rest(token, "delete", f"simulations/{study.pk}/share/")
    rest(token, "delete", f"simulations/{study.pk}/")
    assert [row.action for row in Entry.objects.order_by("pk")] == [
        "study.add", "study.share", "study.cancel", "study.unshare", "study.delete"
    ]  # fmt: skip
    assert {row.team for row in Entry.objects.all()} == {"vision"}


def test_a_new_type_of_gpu_is_a_row_with_its_figures() -> None:
    figures = ("--tflops", "1", "--memory-gb", "2", "--idle-w", "3", "--peak-w", "4")
    call_command("set_gpu_type", "T4", *figures, stdout=StringIO())
    assert the_row().new == {"tflops": 1.0, "memory_gb": 2.0, "idle_w": 3.0, "peak_w": 4.0}
    assert GpuType.objects.get().name == the_row().thing
