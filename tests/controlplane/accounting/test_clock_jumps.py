"""Bills and histories after the server's clock has jumped: nothing negative, nothing twice."""

from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.accounting.ledger import meter
from controlplane.accounting.models import EnergyEntry
from controlplane.execution.outcomes import end_assignment
from controlplane.loop.pages.timeline import gantt_bars
from jobs.assignment_lifecycle import AssignmentMove
from jobs.models import Assignment, Job
from jobs.moves import lock_assignment
from loadmaster.protocol import ReasonClass
from tests.builders import a_user
from tests.builders_agents import a_node_with_agent, a_running_assignment
from tests.builders_costs import a_priced_cluster, a_v100_node

pytestmark = pytest.mark.django_db


def _end(run: Assignment, at_s: float) -> Assignment:
    now = timezone.now() + timedelta(seconds=at_s)
    end_assignment(
        lock_assignment(run.pk), AssignmentMove.FAIL, ReasonClass.NODE, "its node failed", now
    )
    run.refresh_from_db()
    return run


def test_a_launch_that_ended_before_it_began_by_the_clock_costs_nothing() -> None:
    run = a_running_assignment(a_node_with_agent(), now=timezone.now() + timedelta(hours=1))
    _end(run, 10)
    assert run.ended_at == run.running_at
    assert run.energy_cost == 0
    job = Job.objects.get(pk=run.job_id)
    assert min(job.received_s.values(), default=0.0) == 0.0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([10, 400, -60, 60, -3600, 3600]), min_size=2, max_size=12))
def test_no_order_of_jumps_makes_a_bill_negative_or_counts_an_hour_twice(steps: list[int]) -> None:
    with transaction.atomic():
        run, at_s = a_running_assignment(a_v100_node(a_priced_cluster()), now=timezone.now()), 0
        for step in steps:
            at_s += step
            meter(timezone.now() + timedelta(seconds=at_s))
        _end(run, at_s)
        rows = EnergyEntry.objects.filter(assignment=run)
        assert rows.count() == rows.values("hour").distinct().count()
        assert all(row.cost >= 0 and row.facility_kwh >= 0 and row.gpu_s >= 0 for row in rows)
        assert (rows.aggregate(s=Sum("cost"))["s"] or Decimal(0)) == run.energy_cost
        ran_s = (run.ended_at - run.accepted_at).total_seconds()  # type: ignore[operator]  # both set
        assert sum(row.gpu_s for row in rows) == pytest.approx(ran_s, abs=1e-3)
        transaction.set_rollback(True)


def test_no_chart_ends_in_the_future() -> None:
    node, now = a_node_with_agent(gpus=2), timezone.now()
    ended = a_running_assignment(node, now=now - timedelta(minutes=5))
    _end(ended, 3600)
    a_running_assignment(node, now=now + timedelta(hours=1))
    bars, _ = gantt_bars(
        a_user(operator=True),
        node.cluster,
        [node],
        now - timedelta(hours=1),
        now + timedelta(hours=2),
    )
    past = [bar for bar in bars if bar.kind in ("ran", "running")]
    assert past
    assert all(bar.to_s <= timezone.now().timestamp() for bar in past)
