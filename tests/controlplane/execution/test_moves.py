"""An assignment moves only if it still is what was read: state, fence and epoch are compared."""

from typing import Any

import pytest

from controlplane.execution.moves import move_assignment, request_stop
from jobs.assignment_lifecycle import AssignmentMove
from jobs.models import Assignment
from jobs.moves import LostRaceError
from loadmaster.protocol import StopReason
from tests.builders_agents import a_node_with_agent, a_running_assignment

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("meanwhile", [{"state": "stopping"}, {"fence": 7}, {"epoch": 7}], ids=str)
def test_an_assignment_that_has_changed_since_it_was_read_does_not_move(
    meanwhile: dict[str, Any],
) -> None:
    read = a_running_assignment(a_node_with_agent())
    Assignment.objects.update(**meanwhile)
    with pytest.raises(LostRaceError):
        move_assignment(read, AssignmentMove.LOSE_CONTACT, reason="silent")
    now = Assignment.objects.get()
    assert now.state == meanwhile.get("state", "running")
    assert now.reason == ""
    assert not now.events.exists()


def test_what_has_ended_since_it_was_read_is_not_asked_to_stop() -> None:
    read = a_running_assignment(a_node_with_agent())
    Assignment.objects.update(state="failed")
    assert not request_stop(read, StopReason.PREEMPT)
    assert Assignment.objects.get().desired == "run"
