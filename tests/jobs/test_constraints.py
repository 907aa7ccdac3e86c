"""The database itself refuses what no process may do twice, whatever the code before it missed."""

from collections.abc import Callable

import pytest
from django.db import IntegrityError, transaction

from jobs.models import Assignment, AssignmentSlot, LogChunk
from tests.builders_agents import a_node_with_agent, an_offer

pytestmark = pytest.mark.django_db


@pytest.fixture
def offer() -> Assignment:
    return an_offer(a_node_with_agent())


def again(offer: Assignment, **values: int | str) -> None:
    row = {"job": offer.job, "node": offer.node, "fence": offer.fence, "gpus": 0, **values}
    Assignment.objects.create(**row)


def a_rank_lives_twice(offer: Assignment) -> None:
    again(offer, fence=offer.fence + 1)


def a_fence_launches_twice(offer: Assignment) -> None:
    Assignment.objects.update(state="preempted")
    again(offer)


def a_slot_is_held_twice(offer: Assignment) -> None:
    other = an_offer(offer.node, gpus=0)
    (slot,) = offer.slots.all()
    AssignmentSlot.objects.create(assignment=other, device=slot.device, slot=slot.slot, share=1.0)


def a_piece_of_a_log_comes_twice(offer: Assignment) -> None:
    for size in (3, 5):
        LogChunk.objects.create(
            assignment=offer, stream="stdout", offset=7, size=size, data=b"x" * size
        )


@pytest.mark.parametrize(
    "act",
    [
        a_rank_lives_twice,
        a_fence_launches_twice,
        a_slot_is_held_twice,
        a_piece_of_a_log_comes_twice,
    ],
)
def test_nothing_is_held_launched_or_logged_twice(
    offer: Assignment, act: Callable[[Assignment], None]
) -> None:
    with pytest.raises(IntegrityError, match=r"(?i)unique"), transaction.atomic():
        act(offer)


def test_another_rank_and_a_launch_after_an_end_are_no_second_ones(offer: Assignment) -> None:
    again(offer, rank=1)
    Assignment.objects.update(state="preempted")
    again(offer, fence=offer.fence + 1)
    assert Assignment.objects.count() == 3
