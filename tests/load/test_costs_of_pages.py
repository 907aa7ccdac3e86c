"""What pages cost does not grow with what is in the database: no more queries for a larger cluster
than for a small one.
"""

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from experiments.load.scenarios import pages
from experiments.load.seed import seed

pytestmark = pytest.mark.django_db

MOST = 17
"""Queries of any page, those of session, user and role among them."""

PAGES = (
    "queue", "queue, all jobs", "queue, search", "job that runs", "job that waits", "nodes",
    "timeline", "rounds", "API jobs",
    "API jobs, queued", "API nodes",
)  # fmt: skip


def queries(name: str, who: str, *, jobs: int, nodes: int) -> int:
    """How many queries the page takes in a cluster of that size."""
    seeded = seed(jobs=jobs, nodes=nodes)
    client = Client()
    client.force_login(
        User.objects.get(username=who), backend="django.contrib.auth.backends.ModelBackend"
    )
    path = pages(seeded)[name].replace("offset=5000", "offset=1").replace("train-99", "train-")
    assert client.get(path).status_code == 200
    with CaptureQueriesContext(connection) as asked:
        client.get(path)
    return len(asked)


@pytest.mark.parametrize("who", ["load-0", "load-operator"])
@pytest.mark.parametrize("name", PAGES)
def test_a_larger_cluster_costs_no_page_more_queries(name: str, who: str) -> None:
    counts = []
    for size in ({"jobs": 160, "nodes": 8}, {"jobs": 600, "nodes": 60}):
        with transaction.atomic():
            counts.append(queries(name, who, **size))
            transaction.set_rollback(True)
    assert counts[1] <= counts[0] <= MOST
