"""What a round locks while it applies its plan does not stop others from committing rows that point
there.

Seen under kills on PostgreSQL: one transaction held a job and, at its commit, wanted a share of the
key of a node that a round had locked whole; the round wanted the job.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from clusters.models import Node, NodeEvent, Reason, RescheduleEvent
from controlplane.loop.changes import Start
from controlplane.loop.live.apply import _lock
from jobs.models import Job
from jobs.services import job_hold
from policies.contract.plan import Placement
from policies.contract.snapshot import RankPlacement
from tests.builders import a_cluster, a_job, a_node

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


def point_at(node: Node, job: Job) -> None:
    """Commit rows that point at the node and the job; OperationalError where that has to wait for a
    second.
    """
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '1s'")
            NodeEvent.objects.create(node=node, event="seen")
            RescheduleEvent.objects.create(cluster=job.cluster, reason=Reason.SUBMISSION, job=job)
    finally:
        connection.close()


def test_rows_that_point_at_a_node_and_a_job_can_be_committed_while_a_round_holds_both() -> None:
    cluster = a_cluster()
    node, job = a_node(cluster), a_job(cluster)
    placement = Placement(job=str(job.pk), ranks=(RankPlacement(str(node.pk), ("0",)),))
    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        _lock([Start(placement)])
        pool.submit(point_at, node, job).result()
    assert NodeEvent.objects.filter(node=node, event="seen").exists()


def test_rows_that_point_at_a_job_can_be_committed_while_its_owner_acts_on_it() -> None:
    cluster = a_cluster()
    node, job = a_node(cluster), a_job(cluster)
    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        job_hold(job, job.user)
        pool.submit(point_at, node, job).result()
    assert RescheduleEvent.objects.filter(job=job, reason=Reason.SUBMISSION).exists()
