"""The long past that `make bench-size` writes is one that a server could have left."""

import pytest

from clusters.models import Cluster
from controlplane.loop.models import Round
from experiments.load.history import write_history
from experiments.load.seed import seed
from jobs.assignment_lifecycle import ENDED, MOVES
from jobs.models import Assignment, AssignmentEvent

pytestmark = pytest.mark.django_db(transaction=True)
"""As it is written: PostgreSQL empties no table of rows that are not committed."""


@pytest.fixture
def cluster() -> Cluster:
    """A cluster with some 300 jobs that ended within 40 days."""
    house = Cluster.objects.get(name=seed(jobs=60, nodes=4).cluster)
    write_history(house, jobs=300, days=40.0)
    return house


def test_every_launch_of_the_past_has_ended_by_moves_that_there_are(cluster: Cluster) -> None:
    past = Assignment.objects.filter(energy_kwh__isnull=False)
    assert past.count() == past.filter(state__in=ENDED).count() > 250
    told = AssignmentEvent.objects.exclude(move="offer").values_list("to_state", "move")
    assert set(told) <= {(str(state), str(move)) for (_, move), state in MOVES.items()}


def test_the_past_has_a_round_for_four_jobs_numbered_in_the_order_of_time(cluster: Cluster) -> None:
    rounds = list(Round.objects.filter(cluster=cluster).order_by("started_at"))
    assert 70 <= len(rounds) <= 80
    assert {(r.status, r.snapshot) for r in rounds} == {(Round.Status.APPLIED, None)}
    numbers = [r.number for r in rounds]
    assert numbers == sorted(set(numbers))
    assert 0 < numbers[0] < numbers[-1] <= cluster.round_number, "the next one is later"
    assert all(r.ended_at and r.plan for r in rounds)
    assert 35 < (rounds[-1].started_at - rounds[0].started_at).days <= 40
