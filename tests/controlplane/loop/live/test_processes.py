"""Rounds of several processes on one database: one wins, and one that is killed in the middle loses
nothing.
"""

from pathlib import Path

import pytest
from django.utils import timezone

from clusters.events import request_reschedule
from clusters.models import Cluster, Reason, RescheduleEvent
from controlplane.loop.live.lock import EXPIRY_S, is_held
from controlplane.loop.models import Round
from controlplane.web.storage.watch import THIS_MACHINE, Watch
from jobs.models import Assignment, Job
from tests.builders import a_cluster, a_job, a_node
from tests.builders_clocks import Machine
from tests.builders_live import a_round_of_waiting_events
from tests.builders_processes import at_once

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

# The policy takes its time, so that the rounds overlap whoever comes first.
HOLD = """
import time
from controlplane.loop.live.solver import solve_here
from controlplane.loop.live.world import Ports, hold_round

def solve(*given):
    time.sleep(1.0)
    return solve_here(*given)

ready()
print(hold_round(int(sys.argv[2]), Ports(solve)) is not None)
"""

# Dies as by kill -9 (no cleanup of any kind) at the place named: before, while or after deciding,
# or in the midst of applying.
DIE = """
import os
from controlplane.loop.live import world
from controlplane.loop.live.solver import solve_here
from controlplane.loop.live.world import Ports, hold_round

place = sys.argv[3]
die = lambda *given, **more: os._exit(9)
solve = solve_here
if place == "snapshot":
    world.observe = die
if place == "solve":
    solve = die
if place == "apply":
    world.record.close_round = die
ready()
hold_round(int(sys.argv[2]), Ports(solve))
"""


def a_cluster_with_work() -> Cluster:
    cluster = a_cluster(policy="fifo")
    a_node(cluster, gpus=1)
    job = a_job(cluster)
    request_reschedule(cluster, Reason.SUBMISSION, job=job)
    return cluster


def test_of_two_processes_that_want_the_same_round_one_holds_it(tmp_path: Path) -> None:
    cluster = a_cluster_with_work()
    answers = at_once(tmp_path, HOLD, (cluster.pk,), (cluster.pk,))
    assert sorted(printed for _, printed in answers) == ["False\n", "True\n"]
    assert list(Round.objects.values_list("number", "status", "message")) == [(1, "applied", "")]
    assert Assignment.objects.count() == 1
    assert not RescheduleEvent.objects.filter(round=None).exists()


def test_a_round_whose_process_is_killed_is_taken_over_and_nothing_is_lost(tmp_path: Path) -> None:
    places = ("snapshot", "solve", "apply")
    clusters = [a_cluster_with_work() for _ in places]
    answers = at_once(
        tmp_path, DIE, *((c.pk, place) for c, place in zip(clusters, places, strict=True))
    )
    assert [code for code, _ in answers] == [9, 9, 9]
    for cluster in clusters:
        cluster.refresh_from_db()
        assert cluster.round_expires_at is not None
        assert cluster.round_expires_at > timezone.now()
        _check_taken_over(cluster)


def test_a_round_of_a_process_killed_on_another_machine_is_taken_over_when_its_time_is_up(
    tmp_path: Path,
) -> None:
    cluster = a_cluster_with_work()
    at_once(tmp_path, DIE, (cluster.pk, "solve"))
    cluster.refresh_from_db()
    cluster.round_owner = "elsewhere" + cluster.round_owner[cluster.round_owner.index(".") :]
    cluster.save(update_fields=["round_owner"])
    here = Machine()
    assert is_held(cluster, here.watch)
    assert a_round_of_waiting_events(cluster) is None, "the dead one's lock still holds"
    _check_taken_over(cluster, here.after(EXPIRY_S))


def _check_taken_over(cluster: Cluster, watch: Watch = THIS_MACHINE) -> None:
    assert not Assignment.objects.filter(job__cluster=cluster).exists()
    assert Job.objects.get(cluster=cluster).state == "queued"
    assert not is_held(cluster, watch), "whatever a solver may take"
    assert a_round_of_waiting_events(cluster, watch=watch) is not None
    assert Job.objects.get(cluster=cluster).state == "starting"
    statuses = list(
        Round.objects.filter(cluster=cluster).order_by("number").values_list("status", flat=True)
    )
    assert statuses in (["abandoned", "applied"], ["applied"])
    assert RescheduleEvent.objects.get(cluster=cluster).round == Round.objects.filter(
        cluster=cluster
    ).latest("number")
