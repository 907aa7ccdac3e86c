"""Page of the queue: filters, search, and the part that htmx asks for."""

import pytest
from django.test import Client

from jobs.models import Assignment, AssignmentSlot, Job
from tests.builders import a_team, a_user
from tests.builders_pages import Demo, a_busy_cluster
from tests.controlplane.test_pages import text

pytestmark = pytest.mark.django_db


@pytest.fixture(name="demo")
def _demo() -> Demo:
    return a_busy_cluster()


@pytest.fixture(name="ada")
def _ada(demo: Demo, client: Client) -> Client:
    client.force_login(demo.user)
    return client


@pytest.mark.parametrize(
    ("query", "seen", "unseen"),
    [
        ("", "convnet-digits-large", "baseline"),
        ("?state=completed", "baseline", "convnet-digits-large"),
        ("?state=failed", "broken-paths", "baseline"),
        ("?state=waiting", "recurrent-sequences", "convnet-digits-large"),
        ("?search=RECURRENT", "recurrent-sequences", "night-run"),
        ("?state=nonsense&page=999", "recurrent-sequences", "baseline"),
    ],
)
def test_the_queue_filters(demo: Demo, ada: Client, query: str, seen: str, unseen: str) -> None:
    Job.objects.filter(waiting_code="no_capacity").update(waiting_detail={})
    page = text(ada, f"/{query}")
    assert f">{seen}</a>" in page
    assert f">{unseen}</a>" not in page


def test_only_mine_leaves_out_my_colleagues_jobs(demo: Demo, client: Client) -> None:
    client.force_login(a_user(team=demo.team))
    assert "convnet-digits-large" in text(client, "/")
    assert "No job fits these filters" in text(client, "/?mine=1")


def test_a_job_is_found_by_its_id(demo: Demo, ada: Client) -> None:
    for begun in (str(demo.waiting.pk), str(demo.waiting.pk)[:13]):
        page = text(ada, f"/?search={begun}")
        assert ">recurrent-sequences</a>" in page
        assert ">night-run</a>" not in page


def test_operators_filter_by_team(demo: Demo, client: Client) -> None:
    client.force_login(demo.operator)
    assert "not-for-ada" in text(client, "/")
    assert "not-for-ada" not in text(client, "/?team=vision")


def test_htmx_gets_the_part_and_caches_keep_it_apart(ada: Client) -> None:
    for path in ("/", "/nodes/", "/rounds/"):
        part = ada.get(path, headers={"HX-Request": "true"})
        assert "<!doctype html>" not in part.content.decode()
        assert "HX-Request" in part["Vary"]


def test_the_queue_says_why_a_job_failed(demo: Demo, ada: Client) -> None:
    Job.objects.filter(pk=demo.waiting.pk).update(state="failed", failure_reason="out of <memory>")
    assert "out of &lt;memory&gt;" in text(ada, "/?state=failed")


def test_a_stranger_reads_how_many_gpus_other_teams_use(demo: Demo, client: Client) -> None:
    client.force_login(a_user("stranger", team=a_team("hearing")))
    page = text(client, "/")
    assert "No job of your teams runs or waits" in page
    busy = AssignmentSlot.objects.filter(live=True).values("device").distinct().count()
    assert f"Other teams use {busy} of 8 GPUs." in page
    assert demo.running.name not in page


def test_a_member_reads_what_the_others_use_beside_the_own(demo: Demo, ada: Client) -> None:
    assert "Other teams use 1 of 8 GPUs." in text(ada, "/")
    AssignmentSlot.objects.exclude(assignment__job__team=demo.team).delete()
    assert "Other teams use" not in text(ada, "/")


def test_an_operator_reads_all_jobs_and_no_sum_of_others(demo: Demo, client: Client) -> None:
    client.force_login(demo.operator)
    assert "Other teams use" not in text(client, "/")


def test_an_empty_cluster_says_that_nothing_runs(client: Client) -> None:
    client.force_login(a_user("stranger", team=a_team("hearing")))
    assert "Nothing runs or waits" in text(client, "/")


def test_cores_that_other_teams_use_are_counted(demo: Demo, client: Client) -> None:
    Assignment.objects.filter(job=demo.running, state="running").update(gpus=0, units=2)
    AssignmentSlot.objects.all().delete()
    Job.objects.filter(pk=demo.running.pk).update(cores=3.0)
    client.force_login(a_user("stranger", team=a_team("hearing")))
    assert "Other teams use 6 cores." in text(client, "/")
