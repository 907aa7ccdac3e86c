"""Lines of rounds, reconcilers and outcomes name the round, job, assignment and node that they are
about.
"""

import io
import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.execution import outcomes
from controlplane.execution import reconciler as reconciling
from controlplane.execution.outcomes import assignment_ended
from controlplane.web.logs.structured import formatter
from jobs.models import Assignment
from jobs.moves import LostRaceError
from loadmaster.protocol import AssignmentState
from tests.builders import a_cluster
from tests.builders_agents import CLOCK, a_node_with_agent, a_running_assignment, reconcile_clusters
from tests.builders_live import a_round

pytestmark = pytest.mark.django_db


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    stream, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter("json"))
    root.addHandler(handler)
    yield stream
    root.removeHandler(handler)


def line(said: io.StringIO, words: str) -> dict[str, Any]:
    """The one line that says so."""
    (event,) = (e for e in map(json.loads, said.getvalue().splitlines()) if words in e["event"])
    return dict(event)


def broken(*_: object, **__: object) -> Any:
    raise RuntimeError("out of order")


def too_late(*_: object, **__: object) -> Any:
    raise LostRaceError("somebody was faster")


def test_a_policy_that_breaks_is_told_with_its_cluster_and_round(said: io.StringIO) -> None:
    cluster = a_cluster()
    held = a_round(cluster, broken)
    event = line(said, "broke")
    assert (event["cluster"], event["round"]) == (str(cluster.pk), str(held.number))


def test_an_end_that_cannot_be_billed_is_told_with_job_assignment_and_node(
    said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "bill", broken)
    assignment = a_running_assignment(a_node_with_agent(a_cluster(**CLOCK)))
    Assignment.objects.filter(pk=assignment.pk).update(
        state=AssignmentState.SUCCEEDED, ended_at=timezone.now()
    )
    assignment.refresh_from_db()
    assignment_ended(assignment)
    event = line(said, "could not be billed")
    ids = (str(assignment.job_id), str(assignment.pk), str(assignment.node_id))
    assert (event["job"], event["assignment"], event["node"]) == ids


def test_what_a_pass_of_the_reconciler_leaves_is_told_with_the_assignment(
    said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciling, "move_assignment", too_late)
    logging.getLogger("controlplane.execution.reconciler").setLevel(logging.INFO)
    assignment = a_running_assignment(a_node_with_agent(a_cluster(**CLOCK)))
    reconcile_clusters(timezone.now() + timedelta(days=1))
    event = line(said, "left for the next pass")
    assert (event["assignment"], event["cluster"]) == (
        str(assignment.pk),
        str(assignment.node.cluster_id),
    )
