"""The frame stands: builders fill the database, and the lifecycle tables have no dead ends."""

from typing import TypeVar

import pytest
from django.core.management import call_command

from jobs import assignment_lifecycle as assignments
from jobs import lifecycle as jobs
from loadmaster.protocol import AssignmentState
from tests.builders import a_cluster, a_job, a_node

S = TypeVar("S")
M = TypeVar("M")
pytestmark = pytest.mark.django_db


def test_a_job_and_a_node_can_be_built_in_one_line_each() -> None:
    cluster = a_cluster()
    node = a_node(cluster, gpus=2)
    assert node.devices.count() == 2
    assert a_job(cluster).remaining_steps == 100


def test_models_and_migrations_agree() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


@pytest.mark.parametrize("state", sorted(assignments.LIVE))
def test_every_live_assignment_can_end(state: AssignmentState) -> None:
    assert _reaches(dict(assignments.MOVES), state) & assignments.ENDED


@pytest.mark.parametrize("state", sorted(jobs.ACTIVE))
def test_every_active_job_can_end(state: jobs.JobState) -> None:
    assert _reaches(dict(jobs.MOVES), state) & jobs.ENDED


def test_nothing_leaves_the_end_of_an_assignment() -> None:
    assert not [pair for pair in assignments.MOVES if pair[0] in assignments.ENDED]


def test_a_move_the_table_lacks_is_refused_by_name() -> None:
    with pytest.raises(jobs.IllegalJobMoveError, match="completed cannot run"):
        jobs.check_move(jobs.JobState.COMPLETED, jobs.JobMove.RUN)
    with pytest.raises(assignments.IllegalAssignmentMoveError, match="lost cannot run"):
        assignments.check_move(AssignmentState.LOST, assignments.AssignmentMove.RUN)


def _reaches(moves: dict[tuple[S, M], S], start: S) -> set[S]:
    found = {start}
    while new := {after for (before, _), after in moves.items() if before in found} - found:
        found |= new
    return found
