"""What people change in the administration is a row each."""

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core import serializers
from django.test import Client, RequestFactory
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from knox.models import AuthToken

from clusters.models import Device, PueRecord
from controlplane.audit.models import Channel, Entry
from controlplane.audit.record import record
from jobs.models import Job, Team
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_admin import admin_path, change_form
from tests.builders_jobs import a_token

pytestmark = pytest.mark.django_db


def test_the_administration_keeps_old_and_new_values_also_of_rows_beside_the_form(
    page: Client,
) -> None:
    team = a_team("vision")
    a_user("ada", team=team)
    url = admin_path(Team, "change", team.pk)
    values = {**change_form(page, url), "weight": "4", "membership_set-0-role": "maintainer"}
    assert page.post(url, values).status_code == 302
    row = Entry.objects.get()
    assert (row.action, row.channel, row.actor) == ("team.change", Channel.ADMIN, "boss")
    assert (row.old["weight"], row.new["weight"]) == (1.0, 4.0)
    assert row.changes["membership ada in vision: role"] == ("member", "maintainer")
    assert row.team_id == team.pk


def test_the_administration_audits_additions_deletions_and_actions(page: Client) -> None:
    team = a_team("vision")
    page.post(admin_path(PueRecord, "add"), {
        "cluster": a_cluster(name="lab").pk, "pue": "1.1",
        "effective_from_0": "2026-01-01", "effective_from_1": "00:00:00",
    })  # fmt: skip
    assert (Entry.objects.get().action, Entry.objects.get().new["cluster"]) == (
        "puerecord.add",
        "lab",
    )
    page.post(admin_path(Team, "delete", team.pk), {"post": "yes"})
    rows = [a_team("red").pk, a_team("blue").pk]
    chosen = {"action": "delete_selected", "_selected_action": rows, "post": "yes"}
    page.post(admin_path(Team, "changelist"), chosen)
    assert not Team.objects.exists()
    gone = Entry.objects.filter(action="team.delete").order_by("pk")
    assert {row.thing for row in gone} == {"vision", "red", "blue"}
    job = a_job(a_cluster())
    page.post(admin_path(Job, "changelist"), {"action": "hold", "_selected_action": [job.pk]})
    held = Entry.objects.get(action="job.hold")
    assert (held.channel, held.actor, held.old) == (Channel.ADMIN, "boss", {"state": "queued"})


def test_no_librarys_action_is_left_in_the_administration(
    page: Client, boss: User, rf: RequestFactory
) -> None:
    request = rf.get("/admin/")
    request.user = boss
    for there in admin.site._registry.values():
        for name, found in there.get_actions(request).items():
            assert found is not None
            package = found[0].__module__.split(".")[0]
            ours = package in ("clusters", "controlplane", "jobs", "profiling")
            assert ours or name == "delete_selected", f"{there}: {name} leaves no row"
    every = IntervalSchedule.objects.create(every=1, period="days")
    task = PeriodicTask.objects.create(name="t", task="t", interval=every)
    chosen = {"action": "disable_tasks", "_selected_action": [task.pk]}
    page.post(admin_path(PeriodicTask, "changelist"), chosen)
    assert PeriodicTask.objects.get().enabled


def test_the_administration_ends_tokens_by_their_owners_names_and_makes_none(page: Client) -> None:
    eve = a_user("eve")
    for _ in range(3):
        a_token(eve)
    first, *others = AuthToken.objects.order_by("created")
    values = {"user": eve.pk, "expiry_0": "2099-01-01", "expiry_1": "00:00:00"}
    for url in (admin_path(AuthToken, "add"), admin_path(AuthToken, "change", first.pk)):
        assert page.post(url, values).status_code == 403, url
    assert AuthToken.objects.count() == 3
    assert page.get(admin_path(AuthToken, "change", first.pk)).status_code == 200
    page.post(admin_path(AuthToken, "delete", first.pk), {"post": "yes"})
    row = Entry.objects.get()
    assert (row.action, row.thing, row.old) == (
        "credential.end", first.token_key, {"owner": "eve"}
    )  # fmt: skip
    chosen = {"action": "delete_selected", "_selected_action": [one.pk for one in others]}
    page.post(admin_path(AuthToken, "changelist"), {**chosen, "post": "yes"})
    assert not AuthToken.objects.exists()
    everything = serializers.serialize("json", Entry.objects.all())
    assert everything.count('"owner": "eve"') == 3
    assert not any(one.digest in everything for one in (first, *others))


def test_a_page_that_saves_by_a_service_leaves_one_row(page: Client) -> None:
    device = Device.objects.get(node=a_node(a_cluster(), gpus=1))
    page.post(admin_path(Device, "change", device.pk), {"slots": "2"})
    assert (Entry.objects.get().action, Entry.objects.get().channel) == (
        "node.slots",
        Channel.ADMIN,
    )


def test_the_administration_has_no_page_of_it(page: Client) -> None:
    record("cluster.change", "lab")
    assert page.get(f"/admin/audit/entry/{Entry.objects.get().pk}/change/").status_code == 404
    assert "audit" not in page.get("/admin/").content.decode()
