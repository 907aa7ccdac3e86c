"""Figures of batch jobs: what the launches' rows tell."""

from typing import Any

import pytest

from experiments.load.batch import stages
from tests.builders import a_cluster, a_job, a_node, at
from tests.builders_pages import an_assignment

pytestmark = pytest.mark.django_db


def test_an_offer_that_was_taken_back_counts_as_never_run_and_in_no_mean() -> None:
    cluster = a_cluster()
    node, job = a_node(cluster), a_job(cluster, name="array-1")
    ran: dict[str, Any] = {
        "accepted_at": at(0),
        "running_at": at(2),
        "ended_at": at(5),
        "started": at(0),
    }
    an_assignment(job, node, live=False, **ran)
    taken_back: dict[str, Any] = {
        "accepted_at": None,
        "running_at": None,
        "ended_at": at(9),
        "started": at(0),
    }
    an_assignment(job, node, live=False, **taken_back)
    assert stages("array-") == {
        "never_ran": 1, "to_accepted_s": 0.0, "to_running_s": 2.0, "to_ended_s": 3.0,
    }  # fmt: skip
