"""Idle GPUs beside waiting jobs on the timeline and as a metric."""

from datetime import UTC, datetime

import pytest
from django.test import Client

from controlplane.loop.models import Round
from controlplane.operations.prometheus import StateCollector
from tests.builders import a_user
from tests.builders_pages import a_busy_cluster

pytestmark = pytest.mark.django_db


def test_idle_gpus_are_explained_without_other_teams_names_and_counted() -> None:
    demo = a_busy_cluster()
    start_s = datetime(2090, 1, 1, 3, 59, tzinfo=UTC).timestamp()
    rows = [["reserved", 2, str(demo.waiting.pk), start_s], ["unsuitable", 1, "", None]]
    newest = Round.objects.filter(cluster=demo.cluster, ended_at__isnull=False)
    row = newest.order_by("-number")[0]
    Round.objects.filter(pk=row.pk).update(idle={"waiting": 5, "gpus": rows})
    for user, name in ((demo.user, demo.waiting.name), (a_user(), "another team")):
        client = Client()
        client.force_login(user)
        page = client.get("/timeline/").content.decode()
        assert f"3 GPUs idle beside 5 waiting jobs: 2 reserved for {name}" in page
        assert "from 2090-01-01 03:59 UTC" in page
        assert (demo.waiting.name in page) == (user == demo.user)
    (family,) = [f for f in StateCollector().collect() if f.name == "loadmaster_idle_gpus"]
    assert {s.labels["cause"]: s.value for s in family.samples} == {"reserved": 2, "unsuitable": 1}
