"""Of an array, rounds see and start as many elements as may run, lowest index first."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from clusters.models import Cluster, Node
from controlplane.loop.live.observe import Observation, observe
from controlplane.loop.live.solver import solve_here
from jobs.models import Dependency, Job, JobArray
from policies.contract.plan import Plan
from tests.builders import a_cluster, a_job, a_node, a_team, a_user
from tests.builders_agents import reconcile_clusters
from tests.builders_live import a_round, refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(policy="fifo")


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return a_node(cluster, gpus=0, cores=8.0)


def an_array(cluster: Cluster, states: str, at_once: int | None = None, **values: Any) -> JobArray:
    """An array whose elements are queued (q), running (r), stopping (s), cancelling (x), held (h),
    completed (c) or failed (f).
    """
    names = {
        "q": "queued", "r": "running", "s": "stopping", "x": "cancelling", "h": "held",
        "c": "completed", "f": "failed",
    }  # fmt: skip
    last = len(states) - 1
    array = JobArray.objects.create(
        indices=f"0-{last}", size=len(states), lowest=0, highest=last, at_once=at_once
    )
    team = a_team()
    common: dict[str, Any] = {
        "team": team,
        "user": a_user(team=team),
        "batch": True,
        "gpus_min": 0,
        "gpus_max": 0,
    }
    kind = a_job(cluster, **common, state="completed").kind
    for index, letter in enumerate(states):
        given = {**common, "kind": kind, "name": "sweep", "state": names[letter], **values}
        a_job(cluster, array=array, array_index=index, **given)
    return array


def seen(cluster: Cluster) -> Observation:
    return observe(cluster.pk, timezone.now().timestamp(), 1)


def waiting(cluster: Cluster) -> list[int]:
    """Indices of waiting elements that a policy is shown."""
    shown = {view.id for view in seen(cluster).snapshot.jobs}
    queued = Job.objects.filter(state="queued", array__isnull=False).order_by("array_index")
    return [job.array_index or 0 for job in queued if str(job.pk) in shown]


@pytest.mark.parametrize(
    ("states", "at_once", "shown"),
    [
        ("qqqq", None, [0, 1, 2, 3]),
        ("qqqq", 2, [0, 1]),
        ("qqqq", 9, [0, 1, 2, 3]),
        ("rqqq", 2, [1]),
        ("crfqq", 2, [3]),
        ("sxqq", 2, []),
        ("rrrq", 2, []),
        ("hqqq", 1, [1]),
    ],
)
def test_a_round_sees_as_many_elements_as_may_start(
    cluster: Cluster, states: str, at_once: int | None, shown: list[int]
) -> None:
    an_array(cluster, states, at_once)
    assert waiting(cluster) == shown


def test_elements_that_wait_for_something_else_take_no_place_of_the_limit(
    cluster: Cluster,
) -> None:
    array = an_array(cluster, "qqqqq", 2)
    first, second, *_ = array.jobs.order_by("array_index")
    Job.objects.filter(pk=first.pk).update(retry_at=timezone.now() + timedelta(hours=1))
    Dependency.objects.create(job=second, on=a_job(cluster, state="held"))
    assert waiting(cluster) == [2, 3]


def test_hidden_elements_say_that_their_array_runs_as_many_as_it_may(
    cluster: Cluster, node: Node
) -> None:
    array = an_array(cluster, "qqqq", 2)
    a_round(cluster)
    rows = array.jobs.order_by("array_index").values_list("state", "waiting_code", "waiting_detail")
    hidden = ("queued", "array_limit", {"at_once": 2})
    assert list(rows) == [("starting", "", {}), ("starting", "", {}), hidden, hidden]
    assert seen(cluster).over_limit == {}  # and nothing is written a second time


def test_a_window_of_the_queue_is_not_filled_by_elements_that_may_not_start(
    cluster: Cluster,
) -> None:
    an_array(cluster, "q" * 40, 1, priority=9)
    other = a_job(cluster)
    with override_settings(ROUND_JOBS=8):
        observed = seen(cluster)
    assert not observed.cut
    assert str(other.pk) in {view.id for view in observed.snapshot.jobs}


def test_arrays_have_their_limits_each(cluster: Cluster) -> None:
    an_array(cluster, "qqq", 1)
    an_array(cluster, "rqqq", 3)
    assert waiting(cluster) == [0, 1, 2]


def test_a_launch_beyond_the_limit_is_refused_by_the_newest_state(
    cluster: Cluster, node: Node
) -> None:
    array = an_array(cluster, "hqqq")

    def limit_while_deciding(*given: Any) -> Plan:
        JobArray.objects.update(at_once=2)
        return solve_here(*given)

    row = a_round(cluster, limit_while_deciding)
    states = array.jobs.order_by("array_index").values_list("state", flat=True)
    assert list(states) == ["held", "starting", "starting", "queued"]
    assert list(refused(row).values()) == ["stale"]


@pytest.mark.parametrize(
    ("states", "condition", "waits"),
    [
        ("cc", "afterok", False),
        ("cq", "afterok", True),
        ("cr", "afterany", True),
        ("cf", "afterany", False),
        ("cf", "afternotok", False),
        ("fr", "afternotok", True),
        ("cr", "afternotok", True),
    ],
)
def test_a_job_waits_for_all_elements_of_an_array(
    cluster: Cluster, states: str, condition: str, waits: bool
) -> None:
    array, job = an_array(cluster, states), a_job(cluster)
    Dependency.objects.create(job=job, on_array=array, condition=condition)
    observed = seen(cluster)
    blocked = {str(job.pk): (str(array.pk),)} if waits else {}
    assert observed.blocked == blocked
    assert (str(job.pk) in {view.id for view in observed.snapshot.jobs}) is not waits


@pytest.mark.parametrize(
    ("states", "condition", "said"),
    [
        ("cfq", "afterok", "it waited for array sweep (afterok), of which sweep[1] failed"),
        ("cc", "afternotok", "it waited for array sweep (afternotok), which completed"),
        ("cq", "afternotok", ""),
        ("fr", "afternotok", ""),
        ("ff", "afterany", ""),
        ("cc", "afterok", ""),
    ],
)
def test_a_job_that_waits_for_an_end_of_an_array_that_cannot_come_fails(
    cluster: Cluster, node: Node, states: str, condition: str, said: str
) -> None:
    array = an_array(cluster, states)
    job = a_job(cluster, team=array.jobs.all()[0].team)
    Dependency.objects.create(job=job, on_array=array, condition=condition)
    reconcile_clusters()
    job.refresh_from_db()
    assert (job.state, job.failure_reason) == (("failed", said) if said else ("queued", ""))
