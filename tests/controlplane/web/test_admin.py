"""The administration: who gets in, what may be changed there, and what the history keeps of it."""

from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from clusters.models import Cluster, EnrolmentToken, Node, NodeEvent, RescheduleEvent
from clusters.services.enrolment import sha256
from controlplane.studies.models import Simulation
from jobs.models import (
    Assignment,
    Attempt,
    Job,
    JobEvent,
    Membership,
    Secret,
    Team,
)
from jobs.secrets import reveal
from tests.builders import a_team, a_user
from tests.builders_admin import admin_path, change_form
from tests.builders_pages import Demo, a_busy_cluster

pytestmark = pytest.mark.django_db

OURS = [
    m
    for app in ("accounting", "clusters", "jobs", "loop", "profiling", "studies")
    for m in apps.get_app_config(app).get_models()
]
INLINE = {
    "AssignmentSlot",
    "Dependency",
    "IdempotencyKey",
    "ImplausibleFigure",
    "JobCounter",
    "LastStart",
    "LogChunk",
    "Membership",
    "ProgressPoint",
    "SimulationFile",
    "TariffBand",
    "TariffStep",
    "UnfinishedArray",
    "UsagePoint",
}
REGISTERED = [m for m in OURS if m in admin.site._registry]


@pytest.fixture(name="demo")
def _demo() -> Demo:
    return a_busy_cluster()


@pytest.fixture(name="grace")
def _grace(demo: Demo, client: Client) -> Client:
    client.force_login(demo.operator)
    return client


def test_every_model_has_a_page_or_stands_on_another_ones() -> None:
    assert {m.__name__ for m in OURS} - {m.__name__ for m in REGISTERED} == INLINE


@pytest.mark.parametrize("model", REGISTERED, ids=lambda m: m.__name__)
def test_operators_see_every_list_and_every_row(grace: Client, model: type[Any]) -> None:
    assert grace.get(admin_path(model, "changelist")).status_code == 200
    row = model._default_manager.first()
    if row is not None:
        assert grace.get(admin_path(model, "change", row.pk)).status_code == 200


def test_no_list_reads_every_row_for_a_count_or_a_hierarchy_of_dates() -> None:
    for model in REGISTERED:
        page = admin.site._registry[model]
        assert (model, page.show_full_result_count, page.date_hierarchy) == (model, False, None)


def test_the_newest_runs_come_first(grace: Client, demo: Demo) -> None:
    rows = grace.get(admin_path(Assignment, "changelist")).context["cl"].result_list
    times = [row.created_at for row in rows]
    assert len(times) > 1
    assert times == sorted(times, reverse=True)


def test_jobs_are_found_by_id_and_by_parts_of_names(grace: Client, demo: Demo) -> None:
    job = demo.running
    both = f"{job.user.username} {job.name[1:]}"
    for asked in (str(job.pk), job.name[1:], job.user.username, job.kind.name.upper(), both):
        page = grace.get(admin_path(Job, "changelist"), {"q": asked})
        assert job in page.context["cl"].result_list, asked
    page = grace.get(admin_path(Job, "changelist"), {"q": f"{job.user.username} none"})
    assert not page.context["cl"].result_list


@pytest.mark.parametrize("model", [Assignment, Attempt, JobEvent])
def test_rows_of_jobs_are_found_by_the_jobs_name_or_id(
    grace: Client, demo: Demo, model: type[Any]
) -> None:
    rows: dict[type[Any], Callable[[], Any]] = {
        Assignment: demo.running.assignments.first,
        Attempt: lambda: Attempt.objects.create(job=demo.running, number=9),
        JobEvent: lambda: JobEvent.objects.create(job=demo.running, event="found"),
    }
    row = rows[model]()
    for asked in (demo.running.name, str(demo.running.pk)):
        page = grace.get(admin_path(model, "changelist"), {"q": asked})
        assert row in page.context["cl"].result_list
    page = grace.get(admin_path(model, "changelist"), {"q": "no such job"})
    assert not page.context["cl"].result_list


def test_nobody_but_operators_gets_in(demo: Demo, client: Client) -> None:
    for person in (None, demo.user):
        if person:
            client.force_login(person)
        for url in (
            reverse("admin:index"),
            admin_path(Job, "changelist"),
            admin_path(Cluster, "change", demo.cluster.pk),
        ):
            assert client.get(url)["Location"].split("?")[0] in ("/login/", "/admin/login/")


def test_operators_do_not_make_operators(grace: Client, demo: Demo) -> None:
    assert grace.get(admin_path(User, "changelist")).status_code == 403
    assert (
        grace.post(admin_path(User, "change", demo.operator.pk), {"is_superuser": "on"}).status_code
        == 403
    )


def test_superusers_manage_people(client: Client) -> None:
    client.force_login(User.objects.create_superuser("root", password="a long password"))
    assert client.get(admin_path(User, "changelist")).status_code == 200
    assert client.get(admin_path(User, "add")).status_code == 200


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"policy": "clairvoyant"}, "no such policy; known are: cost_search, randomized_greedy"),
        ({"policy_parameters": '{"moves": -1}'}, "moves: must be"),
        ({"policy_parameters": '{"speed": 1}'}, "speed: no such parameter; known are:"),
        ({"policy_parameters": "[1]"}, "must be an object"),
        ({"timezone": "Mars/Base"}, "is no IANA time zone"),
        ({"lease_s": "1"}, "at least two heartbeats"),
    ],
)
def test_a_cluster_takes_only_what_its_policy_takes(
    grace: Client, demo: Demo, values: dict[str, str], message: str
) -> None:
    url = admin_path(Cluster, "change", demo.cluster.pk)
    answer = grace.post(url, {**change_form(grace, url), **values})
    assert answer.status_code == 200
    errors = str(answer.context["adminform"].form.errors)
    assert message in errors
    assert not RescheduleEvent.objects.exists()


def test_a_changed_policy_is_kept_asked_for_and_written_down(grace: Client, demo: Demo) -> None:
    url = admin_path(Cluster, "change", demo.cluster.pk)
    answer = grace.post(
        url, {**change_form(grace, url), "policy": "fifo", "policy_parameters": "{}"}
    )
    assert answer.status_code == 302
    assert Cluster.objects.get(pk=demo.cluster.pk).policy == "fifo"
    assert RescheduleEvent.objects.get().cluster == demo.cluster
    assert "policy from cost_search to fifo" in LogEntry.objects.get().get_change_message()


def test_a_refused_policys_parameters_are_explained_not_those_of_the_one_before(
    grace: Client, demo: Demo
) -> None:
    url = admin_path(Cluster, "change", demo.cluster.pk)
    refused = grace.post(
        url,
        {
            **change_form(grace, url),
            "policy": "max_min_fairness",
            "policy_parameters": '{"form": "x"}',
        },
    )
    assert (
        "Of max_min_fairness: form (aware or agnostic or sharing, default aware)"
        in refused.content.decode()
    )


def test_parameters_are_explained_from_the_policys_schema(grace: Client, demo: Demo) -> None:
    page = grace.get(admin_path(Cluster, "change", demo.cluster.pk)).content.decode()
    assert "moves (integer" in page


def test_nodes_change_state_by_actions_that_write_events(grace: Client, demo: Demo) -> None:
    chosen = {"_selected_action": [str(n.pk) for n in demo.nodes]}
    for action in ("cordon", "drain", "uncordon", "to_both"):
        answer = grace.post(
            admin_path(Node, "changelist"), {"action": action, **chosen}, follow=True
        )
        assert "Done for 3." in answer.content.decode()
    assert set(Node.objects.values_list("state", "role")) == {("ready", "both")}
    assert NodeEvent.objects.filter(actor="grace").count() == 12


def test_what_a_node_refuses_is_said(grace: Client, demo: Demo) -> None:
    answer = grace.post(
        admin_path(Node, "changelist"),
        {"action": "uncordon", "_selected_action": [str(demo.nodes[0].pk)]},
        follow=True,
    )
    assert "alpha: node alpha is ready" in answer.content.decode()


def test_jobs_are_read_only_but_for_the_moves_of_the_table(grace: Client, demo: Demo) -> None:
    url = admin_path(Job, "change", demo.waiting.pk)
    assert grace.post(url, {"state": "completed"}).status_code == 403
    assert grace.get(admin_path(Job, "add")).status_code == 403
    assert grace.post(admin_path(Job, "delete", demo.waiting.pk)).status_code == 403
    for action, state in (
        ("hold", "held"),
        ("release", None),
        ("cancel", "cancelled"),
        ("requeue", None),
    ):
        grace.post(
            admin_path(Job, "changelist"),
            {"action": action, "_selected_action": [str(demo.waiting.pk)]},
        )
        assert state in (None, Job.objects.get(pk=demo.waiting.pk).state)
    assert set(demo.waiting.events.values_list("actor", flat=True)) >= {"grace"}


def test_what_a_job_refuses_is_said(grace: Client, demo: Demo) -> None:
    answer = grace.post(
        admin_path(Job, "changelist"),
        {"action": "release", "_selected_action": [str(demo.waiting.pk)]},
        follow=True,
    )
    assert "cannot be released" in answer.content.decode()


def test_an_enrolment_token_is_shown_once_and_only_its_hash_is_kept(
    grace: Client, demo: Demo
) -> None:
    values = {
        "cluster": demo.cluster.pk,
        "role": "profiling",
        "expires_at_0": "2035-01-01",
        "expires_at_1": "00:00:00",
    }
    page = grace.post(admin_path(EnrolmentToken, "add"), values, follow=True).content.decode()
    row = EnrolmentToken.objects.get()
    token = page.partition("shown this once: ")[2].split("<")[0].strip()
    assert sha256(token) == row.sha256
    assert row.created_by == demo.operator
    assert token not in grace.get(admin_path(EnrolmentToken, "changelist")).content.decode()
    assert (
        grace.post(admin_path(EnrolmentToken, "delete", row.pk), {"post": "yes"}).status_code == 302
    )
    assert not EnrolmentToken.objects.exists()


def test_a_secret_goes_in_and_never_comes_out(grace: Client, demo: Demo) -> None:
    grace.post(
        admin_path(Secret, "add"),
        {"team": demo.team.pk, "name": "hub", "value": "hunter2 and more"},
    )
    row = Secret.objects.get()
    assert reveal(row) == "hunter2 and more"
    grace.post(admin_path(Secret, "change", row.pk), {"value": "another one"})
    row.refresh_from_db()
    assert reveal(row) == "another one"
    for url in (
        admin_path(Secret, "changelist"),
        admin_path(Secret, "change", row.pk),
        admin_path(Secret, "history", row.pk),
    ):
        page = grace.get(url).content.decode()
        assert "another one" not in page
        assert "hunter2" not in page


def test_teams_are_made_with_their_members(grace: Client, demo: Demo) -> None:
    values = {
        "name": "speech", "weight": "2", "order": "fifo", "membership_set-TOTAL_FORMS": "1",
        "membership_set-INITIAL_FORMS": "0",
        "membership_set-0-user": demo.user.pk, "membership_set-0-role": "viewer",
        "max_gpus": "8", "max_weight": "10",
        "max_priority": "10", "max_tardiness_weight": "1",
    }  # fmt: skip
    assert grace.post(admin_path(Team, "add"), values).status_code == 302
    assert Membership.objects.get(team__name="speech").role == "viewer"
    speech = Team.objects.get(name="speech")
    assert (speech.order, speech.max_gpus, speech.max_queued_jobs) == ("fifo", 8, None)


def test_limits_of_a_team_change_with_their_old_and_new_values_in_its_history(
    grace: Client, demo: Demo
) -> None:
    RescheduleEvent.objects.all().delete()
    url = admin_path(Team, "change", demo.team.pk)
    changed = {"max_gpus": "4", "max_queued_jobs": "100"}
    assert grace.post(url, {**change_form(grace, url), **changed}).status_code == 302
    said = LogEntry.objects.get(object_id=demo.team.pk).get_change_message()
    assert said == "Changed max_queued_jobs from None to 100 and max_gpus from None to 4."
    assert RescheduleEvent.objects.exists(), "for its jobs may now wait or start"


def test_a_changed_team_asks_for_a_round_where_it_has_jobs(grace: Client, demo: Demo) -> None:
    RescheduleEvent.objects.all().delete()
    url = admin_path(Team, "change", demo.team.pk)
    assert grace.post(url, change_form(grace, url)).status_code == 302
    assert not RescheduleEvent.objects.exists()
    assert grace.post(url, {**change_form(grace, url), "weight": "4.5"}).status_code == 302
    assert [event.cluster for event in RescheduleEvent.objects.all()] == [demo.cluster]


def test_huge_json_is_cut_and_says_so(grace: Client, demo: Demo) -> None:
    demo.round.snapshot = {"jobs": ["x" * 100] * 1000}
    demo.round.save()
    page = grace.get(admin_path(type(demo.round), "change", demo.round.pk)).content.decode()
    assert "characters more" in page
    assert len(page) < 400_000


def test_lists_ask_no_more_for_more_rows(
    grace: Client, demo: Demo, django_assert_max_num_queries: Any
) -> None:
    team, user = a_team(), a_user()
    for index in range(20):
        Job.objects.create(
            name=f"j{index}",
            cluster=demo.cluster,
            team=team,
            user=user,
            kind=demo.waiting.kind,
            total_steps=1,
        )
    with django_assert_max_num_queries(16):
        grace.get(admin_path(Job, "changelist"))


def test_a_simulations_share_key_is_not_shown(grace: Client, demo: Demo) -> None:
    made = Simulation.objects.create(
        name="compared", user=demo.user, document={"seeds": [1]}, share_key="k" * 43
    )
    page = grace.get(admin_path(Simulation, "change", made.pk))
    assert page.status_code == 200
    assert made.share_key not in page.content.decode()
