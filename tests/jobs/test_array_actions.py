"""Actions on arrays reach all elements that allow them, in a few statements."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from clusters.models import Node
from controlplane.audit.models import Entry
from controlplane.web.storage.turns import ROWS_A_TURN
from jobs.arrays import actions
from jobs.arrays.actions import array_act
from jobs.lifecycle import JobMove
from jobs.models import JobArray, JobEvent
from jobs.moves import Moving, move_jobs
from jobs.roles import RoleRefused
from jobs.services import job_submit
from jobs.submission.refusals import JobConflict
from loadmaster.protocol import AssignmentState
from tests.builders import a_cluster, a_node, a_team, a_user
from tests.builders_jobs import a_placement, job_fields

pytestmark = pytest.mark.django_db


@pytest.fixture
def node() -> Node:
    return a_node(a_cluster())


@pytest.fixture
def user(node: Node) -> User:
    return a_user("ada", team=a_team("vision"))


def an_array(user: User, *states: str) -> JobArray:
    """An array whose elements are in these states."""
    data = job_fields(steps=None, array=f"0-{len(states) - 1}")
    array = job_submit(user, data).job.array
    assert array is not None
    for index, state in enumerate(states):
        array.jobs.filter(array_index=index).update(state=state)
    return array


def states(array: JobArray) -> list[str]:
    return list(array.jobs.order_by("array_index").values_list("state", flat=True))


@pytest.mark.parametrize(
    ("verb", "before", "after", "count"),
    [
        ("cancel", "held queued profiling failed", "cancelled " * 3 + "failed", 3),
        ("hold", "held queued profiling completed failed", "held held held completed failed", 2),
        ("release", "held queued completed failed", "queued queued completed failed", 1),
        ("requeue", "held failed cancelled completed", "held queued queued completed", 2),
        ("requeue", "completed completed", "completed completed", 0),
    ],
)  # fmt: skip
def test_an_action_reaches_the_elements_that_allow_it(
    user: User, verb: str, before: str, after: str, count: int
) -> None:
    array = an_array(user, *before.split())
    assert array_act(verb, array, user) == count
    assert states(array) == after.split()
    assert array_act(verb, array, user) == 0
    moved = {"cancel": "cancelled", "hold": "hold", "release": "release", "requeue": "requeue"}
    events = JobEvent.objects.filter(job__array=array, event=moved[verb], actor="ada")
    assert events.count() == count


def test_a_held_array_that_is_released_still_begins_no_sooner_than_asked(user: User) -> None:
    array = job_submit(user, job_fields(steps=None, array="0-1", begin="+2h", hold=True)).job.array
    assert array is not None
    assert array_act("release", array, user) == 2
    assert set(array.jobs.values_list("state", "waiting_code")) == {("queued", "begins_later")}
    assert all(job.retry_at == job.begin_at for job in array.jobs.all())
    assert array_act("release", array, user) == 2
    assert set(array.jobs.values_list("state", "retry_at")) == {("queued", None)}


def test_what_runs_is_stopped_when_its_array_is_cancelled(user: User, node: Node) -> None:
    array = an_array(user, "running", "queued")
    first = array.jobs.get(array_index=0)
    a_placement(first, node, gpus=0)
    assert array_act("cancel", array, user) == 2
    assert states(array) == ["cancelling", "cancelled"]
    assert first.assignments.get().desired == "cancel"
    ended = array.jobs.get(array_index=1)
    assert ended.completed_at is not None


def test_what_runs_goes_on_when_its_array_is_held(user: User, node: Node) -> None:
    array = an_array(user, "running", "queued")
    a_placement(array.jobs.get(array_index=0), node, gpus=0)
    assert array_act("hold", array, user) == 1
    assert states(array) == ["running", "held"]


def test_a_turn_of_many_elements_takes_as_many_statements_as_of_few(user: User) -> None:
    counts = []
    for size in (3, ROWS_A_TURN):
        array = an_array(user, *["queued"] * size)
        with CaptureQueriesContext(connection) as queries:
            array_act("cancel", array, user)
        counts.append(len(queries))
        assert set(states(array)) == {"cancelled"}
    assert counts[0] == counts[1]


@pytest.mark.parametrize("verb", ["cancel", "hold", "release", "requeue"])
def test_an_action_on_a_large_array_goes_on_where_it_was_killed(
    user: User, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {"release": "held", "requeue": "failed"}.get(verb, "queued")
    size = 2 * ROWS_A_TURN + 1
    array = an_array(user, *["queued"] * size)
    array.jobs.update(state=before)
    turns = iter([True])

    def killed(moving: Sequence[Moving], move: JobMove, **more: Any) -> None:
        if not next(turns, False):
            raise KeyboardInterrupt
        move_jobs(moving, move, **more)

    monkeypatch.setattr(actions, "move_jobs", killed)
    with pytest.raises(KeyboardInterrupt):
        array_act(verb, array, user)
    monkeypatch.undo()
    assert array.jobs.exclude(state=before).count() == ROWS_A_TURN
    assert array_act(verb, array, user) == size - ROWS_A_TURN
    assert not array.jobs.filter(state=before).exists()
    assert JobEvent.objects.filter(job__array=array, actor="ada").count() == 2 * size


def test_an_action_on_a_large_array_is_one_row_of_the_audit(user: User) -> None:
    array = an_array(user, *["queued"] * (ROWS_A_TURN + 1))
    array_act("hold", array, user)
    (entry,) = Entry.objects.filter(action="array.hold")
    assert entry.new == {"elements": ROWS_A_TURN + 1, "state": "held"}


def test_resting_elements_of_a_large_array_are_released_in_turns(user: User) -> None:
    array = an_array(user, *["queued"] * (ROWS_A_TURN + 2))
    array.jobs.update(retry_at=timezone.now() + timedelta(hours=1))
    assert array_act("release", array, user) == ROWS_A_TURN + 2
    assert not array.jobs.exclude(retry_at=None).exists()


@pytest.mark.parametrize(("verb", "wish"), [("cancel", "cancel"), ("hold", "preempt")])
def test_a_waiting_element_that_is_measured_is_asked_to_stop(
    user: User, node: Node, verb: str, wish: str
) -> None:
    array = an_array(user, "queued", "queued")
    measured = array.jobs.get(array_index=0)
    a_placement(measured, node, gpus=0, purpose="profiling")
    assert array_act(verb, array, user) == 2
    assert measured.assignments.get().desired == wish


def test_a_held_element_with_something_live_is_not_cancelled_in_bulk(
    user: User, node: Node
) -> None:
    array = an_array(user, "held", "held")
    holding = array.jobs.get(array_index=0)
    a_placement(holding, node, gpus=0, purpose="profiling")
    array_act("cancel", array, user)
    assert states(array) == ["cancelling", "cancelled"]
    assert holding.assignments.get().desired == "cancel"


def test_failed_elements_above_their_teams_limit_are_not_requeued(user: User) -> None:
    array = an_array(user, "failed", "failed")
    user.teams.update(max_queued_jobs=1)
    with pytest.raises(JobConflict):
        array_act("requeue", array, user)
    assert states(array) == ["failed", "failed"]


def test_elements_of_another_member_are_not_touched(user: User) -> None:
    array = an_array(user, "queued", "queued")
    other = a_user("bob", team=user.teams.get())
    for verb in ("cancel", "hold", "release", "requeue"):
        with pytest.raises(RoleRefused):
            array_act(verb, array, other)
    assert states(array) == ["queued", "queued"]


@pytest.mark.parametrize(("verb", "before"), [("requeue", "failed"), ("release", "held")])
def test_an_element_that_ran_before_is_acted_on_in_bulk(
    user: User, node: Node, verb: str, before: str
) -> None:
    array = an_array(user, before)
    a_placement(array.jobs.get(), node, AssignmentState.FAILED, ended_ago_s=60.0)
    assert array_act(verb, array, user) == 1
    assert states(array) == ["queued"]
