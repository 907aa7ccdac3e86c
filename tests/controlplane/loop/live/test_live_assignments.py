"""Live assignments read once are brought up to date by their states, as nothing else changes."""

import pytest

from clusters.models import Cluster, Node
from controlplane.execution.services.stops import stop_assignment
from controlplane.loop.live.live_assignments import LiveAssignments
from loadmaster.protocol import StopReason
from tests.builders_agents import an_offer
from tests.builders_live import devices_of, running

pytestmark = pytest.mark.django_db


def test_nothing_new_is_said_while_all_go_on(cluster: Cluster, node: Node) -> None:
    running(cluster, "a", node, devices_of(node)[0])
    held = LiveAssignments.of(cluster)
    assert held.newest() is None


def test_an_ended_one_is_gone_with_its_slots(cluster: Cluster, node: Node) -> None:
    stays = running(cluster, "a", node, devices_of(node)[0])
    offer = an_offer(node)
    held = LiveAssignments.of(cluster)
    stop_assignment(offer, StopReason.CANCEL)
    newest = held.newest()
    assert newest is not None
    assert [a.pk for a in newest.assignments] == [stays.pk]
    assert [s.assignment_id for slots in newest.of_device.values() for s in slots] == [stays.pk]
    assert len(held.assignments) == 2


def test_one_whose_stop_was_requested_holds_its_slot_but_is_no_placement(
    cluster: Cluster, node: Node
) -> None:
    stops = running(cluster, "a", node, devices_of(node)[0])
    held = LiveAssignments.of(cluster)
    stop_assignment(stops, StopReason.PREEMPT)
    newest = held.newest()
    assert newest is not None
    assert (newest.gangs(), len(held.gangs())) == ([], 1)
    assert [s.assignment_id for s in newest.slots[stops.pk]] == [stops.pk]


def test_all_is_read_where_one_is_new(cluster: Cluster, node: Node) -> None:
    held = LiveAssignments.of(cluster)
    made = running(cluster, "a", node, devices_of(node)[1])
    newest = held.newest()
    assert newest is not None
    assert [a.pk for a in newest.assignments] == [made.pk]
    assert [s.device_id for s in newest.slots[made.pk]] == [devices_of(node)[1].pk]
