"""What pages say, to whom, and in how many queries."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from clusters.models import Node, NodeEvent, Reason
from controlplane.loop.models import Round
from controlplane.web.templatetags.loadmaster import REASONS
from jobs.models import Assignment, Job
from tests.builders import a_cluster, a_job, a_kind, a_node, a_team, a_user, at
from tests.builders_pages import Demo, a_busy_cluster, an_assignment, losses

pytestmark = pytest.mark.django_db

PAGES = (
    "/",
    "/submit/",
    "/password/",
    "/jobs/{job}/",
    "/nodes/",
    "/timeline/",
    "/timeline/figure.json",
    "/rounds/",
    "/rounds/{round}/",
    "/kinds/",
    "/live/",
)


@pytest.fixture(name="demo")
def _demo() -> Demo:
    return a_busy_cluster()


@pytest.fixture(name="ada")
def _ada(demo: Demo, client: Client) -> Client:
    client.force_login(demo.user)
    return client


def text(client: Client, path: str, status: int = 200) -> str:
    answer = client.get(path)
    assert answer.status_code == status
    return answer.content.decode()


@pytest.mark.parametrize("path", PAGES)
def test_a_stranger_is_sent_to_the_login(demo: Demo, client: Client, path: str) -> None:
    answer = client.get(path.format(job=demo.running.pk, round=demo.round.pk))
    assert answer.status_code == 302
    assert answer["Location"].startswith("/login/?next=")


def test_a_stranger_learns_nothing_from_actions(demo: Demo, client: Client) -> None:
    for path in (f"/jobs/{demo.running.pk}/cancel/", f"/nodes/{demo.nodes[0].pk}/drain/"):
        assert client.post(path)["Location"].startswith("/login/")
    demo.running.refresh_from_db()
    assert demo.running.state == "running"


def test_every_name_of_a_page_leads_to_that_page(ada: Client) -> None:
    names = re.findall(r'<li><a href="([^"]*)"', text(ada, "/"))
    assert names[:7] == [
        "/",
        "/nodes/",
        "/timeline/",
        "/rounds/",
        "/kinds/",
        "/costs/",
        "/simulations/",
    ]


def test_another_teams_job_does_not_exist_for_me(demo: Demo, client: Client) -> None:
    client.force_login(a_user(team=a_team()))
    assert client.get(f"/jobs/{demo.running.pk}/").status_code == 404
    assert client.post(f"/jobs/{demo.running.pk}/cancel/").status_code == 404
    assert client.get(f"/submit/?from={demo.running.pk}").status_code == 404
    assert Job.objects.get(pk=demo.running.pk).state == "running"


@pytest.mark.parametrize(
    "path", ["/", "/?state=all", "/nodes/", "/timeline/figure.json?span=24h", "/rounds/{round}/"]
)
def test_names_of_another_teams_jobs_are_not_told(demo: Demo, client: Client, path: str) -> None:
    client.force_login(a_user(team=a_team()))
    page = text(client, path.format(round=demo.round.pk))
    assert not [name for name in Job.objects.values_list("name", flat=True) if name in page]


def test_only_operators_change_nodes(demo: Demo, ada: Client) -> None:
    node = demo.nodes[0]
    for action in ("cordon", "drain", "uncordon", "role", "slots"):
        answer = ada.post(f"/nodes/{node.pk}/{action}/", {"role": "both", "slots": "2"})
        assert answer.status_code == 403
        assert "Only operators change nodes." in answer.content.decode()
    assert not NodeEvent.objects.exists()
    assert "Cordon" not in text(ada, "/nodes/")


def test_operators_change_nodes_and_are_named_in_the_history(demo: Demo, client: Client) -> None:
    client.force_login(demo.operator)
    node = demo.nodes[0]
    for action, state in (("cordon", "cordoned"), ("drain", "draining"), ("uncordon", "ready")):
        answer = client.post(f"/nodes/{node.pk}/{action}/", follow=True)
        assert "alpha" in answer.content.decode()
        assert Node.objects.get(pk=node.pk).state == state
    client.post(f"/nodes/{node.pk}/role/", {"role": "profiling"})
    assert Node.objects.get(pk=node.pk).role == "profiling"
    assert set(NodeEvent.objects.values_list("actor", flat=True)) == {"grace"}


def test_what_cannot_be_done_to_a_node_is_said_and_changes_nothing(
    demo: Demo, client: Client
) -> None:
    client.force_login(demo.operator)
    Node.objects.filter(name="alpha").update(state="lost")
    answer = client.post(f"/nodes/{demo.nodes[0].pk}/cordon/", follow=True)
    assert "Nothing was changed: node alpha is lost" in answer.content.decode()
    assert client.post(f"/nodes/{demo.nodes[0].pk}/explode/").status_code == 404
    assert client.post(f"/nodes/{demo.nodes[0].pk}/role/", {"role": "king"}).status_code == 404


def test_a_drain_of_days_is_told_with_its_day(demo: Demo, client: Client) -> None:
    client.force_login(demo.operator)
    path = f"/nodes/{demo.nodes[0].pk}/drain/"
    said = client.post(path, {"minutes": "4320"}, follow=True).content.decode()
    assert f"move to other nodes by {datetime.now(UTC) + timedelta(days=3):%Y-%m-%d}" in said


def test_the_ranks_of_a_gangs_launch_stand_in_their_order_and_its_log_says_whose_it_is(
    demo: Demo, ada: Client
) -> None:
    gang = a_job(demo.cluster, name="gang", state="running", team=demo.team, user=demo.user)
    for fence in (1, 2):
        for rank, node in enumerate(demo.nodes[1:]):
            an_assignment(
                gang,
                node,
                first=node.devices.count() - 1,
                fence=fence,
                live=fence == 2,
                world_size=2,
                rank=rank,
            )
    page = text(ada, f"/jobs/{gang.pk}/")
    assert re.findall(r">(\d · rank \d)", page) == [
        "2 · rank 0",
        "2 · rank 1",
        "1 · rank 0",
        "1 · rank 1",
    ]
    assert "of its first rank that wrote any" in page
    assert "--rank 1" not in text(ada, f"/jobs/{demo.running.pk}/")


def test_where_a_job_only_has_its_kind_measured_is_not_where_it_runs(
    demo: Demo, ada: Client
) -> None:
    an_assignment(demo.running, demo.nodes[2], purpose="profiling")
    for path in ("/", f"/jobs/{demo.running.pk}/"):
        page = text(ada, path)
        runs, measures = page.index("2 × A100"), page.index("1 × P100")
        assert runs < measures
        assert "measuring</span>" in page[measures : measures + 400]
        assert "measuring</span>" not in page[runs:measures]


def test_a_round_says_which_part_of_a_gpu_a_job_was_given(demo: Demo, ada: Client) -> None:
    changes = demo.round.changes
    changes[1]["to"][0]["share"] = 0.5
    Round.objects.filter(pk=demo.round.pk).update(changes=changes)
    assert "bravo (half of GPU 0, 1)" in text(ada, f"/rounds/{demo.round.pk}/")


def test_a_round_shows_the_price_of_its_hour_in_the_clusters_zone(demo: Demo, ada: Client) -> None:
    path, started_at = f"/rounds/{demo.round.pk}/", datetime(2030, 1, 31, 17, 30, tzinfo=UTC)
    band = {"from_time": time(18), "to_time": time(19), "price_per_kwh": "0.3"}
    demo.cluster.tariffs.get().bands.create(**band)
    found = Round.objects.filter(pk=demo.round.pk)
    found.update(started_at=started_at, timezone="Europe/Rome")
    assert "0.3 EUR/kWh" in text(ada, path)
    found.update(started_at=started_at + timedelta(hours=1))
    assert "0.172 EUR/kWh" in text(ada, path)


def test_a_job_shows_its_cores_and_memory_as_they_were_asked_for(demo: Demo, ada: Client) -> None:
    Job.objects.filter(pk=demo.running.pk).update(cores=0.25, memory_gb=1.75)
    assert "0.25 cores, 1.75 GB" in text(ada, f"/jobs/{demo.running.pk}/")


def test_members_act_on_their_jobs_and_refusals_say_why(demo: Demo, ada: Client) -> None:
    path = f"/jobs/{demo.waiting.pk}"
    assert "on hold" in ada.post(f"{path}/hold/", follow=True).content.decode()
    assert "released" in ada.post(f"{path}/release/", follow=True).content.decode()
    assert "cancelled" in ada.post(f"{path}/cancel/", follow=True).content.decode()
    assert "Nothing was changed" in ada.post(f"{path}/hold/", follow=True).content.decode()
    assert "back in the queue" in ada.post(f"{path}/requeue/", follow=True).content.decode()
    assert ada.get(f"{path}/cancel/").status_code == 405
    assert ada.post(f"{path}/explode/").status_code == 404


@pytest.mark.parametrize("path", ["/", "/nodes/", "/rounds/", "/simulations/"])
def test_a_page_that_htmx_restores_is_whole(ada: Client, path: str) -> None:
    restoring = {"HX-Request": "true", "HX-History-Restore-Request": "true"}
    assert "<!doctype html>" in ada.get(path, headers=restoring).content.decode()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/", "Nothing runs or waits"),
        ("/nodes/", "No cluster yet"),
        ("/rounds/", "No decisions yet"),
        ("/kinds/", "No kinds yet"),
    ],
)
def test_an_empty_page_says_what_to_do_next(client: Client, path: str, words: str) -> None:
    client.force_login(a_user(team=a_team()))
    assert words in text(client, path)


def test_an_empty_cluster_says_how_nodes_come(client: Client) -> None:
    cluster = a_cluster()
    client.force_login(a_user(operator=True))
    assert "No nodes yet" in text(client, "/nodes/")
    assert "No GPUs yet" in text(client, f"/timeline/?cluster={cluster.name}")


def test_a_job_page_tells_what_a_job_did_and_cost(demo: Demo, ada: Client) -> None:
    page = text(ada, f"/jobs/{demo.running.pk}/")
    for words in (
        "49.2%",
        "migrated",
        "a job that is due sooner",
        "in 12 min",
        "modelled",
        "<polyline",
        "step 1160",
        "1 pre-emption",
    ):
        assert words in page
    assert "demo, round 13" in text(ada, f"/rounds/{demo.round.pk}/")
    assert ada.get(f"/rounds/{demo.round.pk + 1}/").status_code == 404
    assert ada.get(f"/jobs/{uuid4()}/").status_code == 404


def test_what_a_program_prints_is_shown_and_never_run(demo: Demo, ada: Client) -> None:
    from tests.builders_pages import a_log

    running = Assignment.objects.get(job=demo.running, state="running")
    a_log(running, "\x1b[31m<script>alert(1)</script>\x1b[0m\n", offset=10**6)
    Job.objects.filter(pk=demo.running.pk).update(name="<img src=x>", failure_reason="<b>bold</b>")
    page = text(ada, f"/jobs/{demo.running.pk}/")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\n" in page
    assert "<script>alert" not in page
    assert "<img src=x>" not in page
    assert "<b>bold" not in page


def test_pages_mark_what_is_emulated(demo: Demo, ada: Client) -> None:
    for path in (
        "/",
        f"/jobs/{demo.running.pk}/",
        "/nodes/",
        "/kinds/",
        "/timeline/figure.json",
        "/submit/",
    ):
        assert "emulated" in text(ada, path), path


def test_kinds_of_other_teams_are_not_shown(demo: Demo, client: Client) -> None:
    client.force_login(a_user(team=a_team()))
    assert "convnet digits" not in text(client, "/kinds/")


def test_kinds_are_found_by_name(demo: Demo, ada: Client) -> None:
    page = text(ada, "/kinds/?search=CONVNET")
    assert "convnet digits" in page
    assert "dense diabetes" not in page
    assert "No kind is called that" in text(ada, "/kinds/?search=nothing")


def more_of_everything(demo: Demo) -> None:
    kind = a_kind(steps_per_s={("A100", 1): 3.0})
    for index in range(6):
        node = a_node(demo.cluster, gpu_type="V100", gpus=2)
        values: dict[str, Any] = {"team": demo.team, "user": demo.user, "kind": kind}
        job = a_job(demo.cluster, state="running", due_at=at(60), **values)
        an_assignment(job, node, gpus=2)
        detail = {"jobs": [str(job.pk)], "nodes": [str(node.pk)]}
        a_job(demo.cluster, waiting_code="no_capacity", waiting_detail=detail, **values)
        earlier = an_assignment(
            demo.running, node, live=False, ended_at=at(-5000), started=at(-6000), fence=100 + index
        )
        losses(earlier, count=10)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/?state=all",
        "/jobs/{job}/",
        "/nodes/",
        "/timeline/figure.json",
        "/rounds/",
        "/rounds/{round}/",
        "/kinds/",
    ],
)
def test_queries_do_not_grow_with_what_there_is(
    demo: Demo,
    ada: Client,
    path: str,
    django_assert_num_queries: DjangoAssertNumQueries,
    count_queries: Callable[[Callable[[], object]], int],
) -> None:
    path = path.format(job=demo.running.pk, round=demo.round.pk)
    before = count_queries(lambda: ada.get(path))
    more_of_everything(demo)
    with django_assert_num_queries(before):
        ada.get(path)


@pytest.fixture(name="count_queries")
def _count_queries() -> Callable[[Callable[[], object]], int]:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    def count(act: Callable[[], object]) -> int:
        with CaptureQueriesContext(connection) as captured:
            act()
        return len(captured)

    return count


def test_everybody_changes_their_own_password(demo: Demo, client: Client) -> None:
    demo.user.set_password("a long password")
    demo.user.save()
    client.force_login(demo.user)
    assert "Change password" in text(client, "/password/")
    fields = {
        "old_password": "a wrong one",
        "new_password1": "quite another 1",
        "new_password2": "quite another 1",
    }
    assert "entered incorrectly" in client.post("/password/", fields).content.decode()
    changed = client.post("/password/", {**fields, "old_password": "a long password"}, follow=True)
    assert "Your password is changed." in changed.content.decode()
    demo.user.refresh_from_db()
    assert demo.user.check_password("quite another 1")


def test_rounds_say_in_words_what_asked_for_them(demo: Demo, ada: Client) -> None:
    demo.round.reasons = ["node_joined", "made_up"]
    demo.round.save()
    assert "node joined, made up" in text(ada, "/rounds/")
    assert set(REASONS) == set(Reason.values)
