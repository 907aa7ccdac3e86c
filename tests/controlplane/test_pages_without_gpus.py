"""Pages of a cluster in which nodes or jobs have no GPUs."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from clusters.models import Node
from controlplane.loop.pages.timeline import gantt_bars
from controlplane.web.pages import formats
from jobs.models import Assignment, Job, Team
from tests.builders import a_cluster, a_job, a_node, a_team, a_user, at

pytestmark = pytest.mark.django_db


def _team() -> Team:
    return Team.objects.filter(name="research").first() or a_team("research")


def runs_on(node: Node, name: str, since_s: float, **fields: Any) -> Assignment:
    """A batch job that holds cores of a node."""
    job = a_job(
        node.cluster, team=_team(), name=name, state="running", gpus_min=0, gpus_max=0,
        batch=True, total_steps=1, cores=2.0,
    )  # fmt: skip
    begun = at(since_s)
    given = {"accepted_at": begun, "running_at": begun, "state": "running", "fence": 1, **fields}
    held = Assignment.objects.create(job=job, node=node, gpus=0, **given)
    Assignment.objects.filter(pk=held.pk).update(created_at=begun)
    return held


@pytest.fixture
def node() -> Node:
    return a_node(a_cluster(), gpus=0, name="c1", cores=8.0)


def test_the_timeline_has_a_lane_of_cores_with_a_row_for_each_job_at_once(node: Node) -> None:
    gpu_node = a_node(node.cluster, gpus=1, name="g1")
    user = a_user("ada", team=_team())
    now = timezone.now().timestamp()
    runs_on(node, "long", -100.0)
    runs_on(node, "first", -90.0, ended_at=at(-50.0), state="succeeded")
    runs_on(node, "second", -40.0)
    bars, lanes = gantt_bars(user, node.cluster, [node, gpu_node], at(-1000.0), at(1000.0))
    assert lanes == ("c1 · cores", "g1 · V100 0")
    assert {b.name: (b.lane, b.row, b.rows) for b in bars} == {
        "long": ("c1 · cores", 0, 2),
        "first": ("c1 · cores", 1, 2),
        "second": ("c1 · cores", 1, 2),
    }
    assert all(bar.from_s < now for bar in bars)


def test_the_pages_show_what_holds_cores(node: Node, client: Client) -> None:
    held = runs_on(node, "simulates", -100.0)
    client.force_login(a_user("ada", team=_team(), operator=True))
    nodes = client.get("/nodes/").content.decode()
    assert "no GPUs" in nodes
    assert "simulates" in nodes
    assert "2 of 8 held" in nodes
    for page in ("/", f"/jobs/{held.job_id}/", "/timeline/", "/costs/", "/kinds/", "/admin/"):
        assert client.get(page).status_code == 200
    assert "2 cores on c1" in client.get("/").content.decode()
    shown = client.get(f"/jobs/{held.job_id}/").content.decode()
    assert "2 cores" in shown
    assert "× " not in shown
    assert "Loss" not in shown
    assert "Its speed" not in shown


def test_a_batch_job_shows_its_units_and_walltime(node: Node, client: Client) -> None:
    job = spread(node)
    Job.objects.filter(pk=job.pk).update(walltime_s=90.0, on_walltime="kill", preemptible=False)
    client.force_login(a_user("ada", team=_team(), operator=True))
    shown = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "it runs on the first node" in shown
    assert "then it is ended" in shown
    assert "pre-emption" not in shown


def spread(node: Node, *, processes: str = "first") -> Job:
    """A batch job of three units, two on this node and one on another."""
    other = a_node(node.cluster, gpus=0, name="c2", cores=8.0)
    first = runs_on(node, "wide", -100.0, units=2, world_size=2)
    Job.objects.filter(pk=first.job_id).update(units=3, processes=processes)
    held = {"accepted_at": at(-100.0), "running_at": at(-100.0), "state": "running", "fence": 1}
    Assignment.objects.create(
        job=first.job, node=other, gpus=0, rank=1, world_size=2, units=1, **held
    )
    return Job.objects.get(pk=first.job_id)


def test_the_pages_say_where_the_units_of_a_job_are(node: Node, client: Client) -> None:
    job = spread(node)
    client.force_login(a_user("ada", team=_team(), operator=True))
    words = "3 units on c1 (2) and c2 (1)"
    assert words in client.get("/").content.decode()
    shown = client.get(f"/jobs/{job.pk}/").content.decode()
    assert words in shown
    assert "4 cores for 2 units on c1" in shown
    assert "2 cores for 1 unit on c2" in shown
    assert "rank 1" in shown
    assert "--rank 1" not in shown, "a held seat writes nothing"
    assert "4 of 8 held" in client.get("/nodes/").content.decode()
    Job.objects.filter(pk=job.pk).update(processes="each")
    assert "--rank 1" in client.get(f"/jobs/{job.pk}/").content.decode()


def test_the_timeline_shows_a_job_on_each_node_of_its_seats(node: Node) -> None:
    job = spread(node)
    nodes = list(Node.objects.order_by("name"))
    user = a_user("ada", team=_team())
    bars, _ = gantt_bars(user, node.cluster, nodes, at(-1000.0), at(1000.0))
    assert {(b.lane, b.key) for b in bars if b.kind == "running"} == {
        ("c1 · cores", str(job.pk)),
        ("c2 · cores", str(job.pk)),
    }


def test_rest_lists_seats_with_their_units(node: Node, client: Client) -> None:
    job = spread(node)
    client.force_login(a_user("ada", team=_team()))
    shown = client.get(f"/api/v1/jobs/{job.pk}/").json()
    assert [(p["node"], p["units"]) for p in shown["placement"]] == [("c1", 2), ("c2", 1)]
    assert (shown["spec"]["units"], shown["spec"]["processes"]) == (3, "first")
    found = client.get(f"/api/v1/jobs/{job.pk}/assignments/").json()
    assert [(a["rank"], a["units"]) for a in found["results"]] == [(0, 2), (1, 1)]
    client.force_login(a_user("eve", team=a_team("others")))
    assert client.get(f"/api/v1/jobs/{job.pk}/").status_code == 404


def test_where_units_are_is_said_in_words() -> None:
    assert formats.units_on([("a", 3)]) == "3 units on a"
    assert formats.units_on([("a", 1)]) == "1 unit on a"
    assert formats.units_on([("a", 2), ("b", 1)]) == "3 units on a (2) and b (1)"
    assert formats.units_on([("a", 2), ("b", 1), ("c", 1)]) == "4 units on a (2), b (1) and c (1)"


@pytest.mark.parametrize(("walltime_s", "on", "told"), [(50, "warn", True), (500, "warn", False),
    (50, "kill", False), (None, "warn", False)])  # fmt: skip
def test_a_job_page_warns_of_a_walltime_that_is_over_and_ends_nothing(
    node: Node, client: Client, walltime_s: float | None, on: str, told: bool
) -> None:
    job = runs_on(node, "simulates", -100.0).job
    Job.objects.filter(pk=job.pk).update(walltime_s=walltime_s, on_walltime=on)
    client.force_login(a_user("ada", team=_team(), operator=True))
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert ("has run longer than its walltime of 50 s" in page) == told


def test_rest_and_metrics_say_that_there_is_no_type(node: Node, client: Client) -> None:
    held = runs_on(node, "simulates", -100.0)
    client.force_login(a_user("ada", team=_team(), operator=True))
    (shown,) = client.get("/api/v1/nodes/").json()["results"]
    assert (shown["gpu_type"], shown["devices"]) == ("", [])
    job = client.get(f"/api/v1/jobs/{held.job_id}/").json()
    assert [(p["gpu_type"], p["gpus"]) for p in job["placement"]] == [("", 0)]
