"""A secret's value goes to the agent that accepts its job, and is found nowhere else: not in
database, answers, pages or logs.
"""

import json
import logging
from typing import Any

import pytest
from django.apps import apps
from django.core import serializers
from django.db import connection

from controlplane.loop.models import Round
from jobs.models import Assignment, TeamRole
from loadmaster.agent.logs import Masker
from loadmaster.protocol import PROTOCOL_HEADER
from tests.builders import a_cluster, a_team, a_user
from tests.builders_agents import CLOCK, NODE_TOKEN, a_node_with_agent
from tests.builders_asgi import SiteClient
from tests.builders_jobs import api, job_fields
from tests.builders_live import a_round

pytestmark = pytest.mark.django_db
VALUE = "s3cr3t-value-0123456789"


@pytest.fixture
def offered(caplog: pytest.LogCaptureFixture) -> Any:
    """A job that refers to a secret, offered to a node, all made by the API."""
    caplog.set_level(logging.DEBUG)
    cluster, team = a_cluster(name="lab", policy="fifo", **CLOCK), a_team("research")
    node = a_node_with_agent(cluster)
    user = a_user("ada", team=team, role=TeamRole.MAINTAINER)
    client = api(user)
    assert (
        client.put(
            "/api/v1/teams/research/secrets/wandb/", {"value": VALUE}, format="json"
        ).status_code
        == 204
    )
    fields = job_fields(environment={"WANDB_API_KEY": {"secret": "wandb"}})
    answer = client.post("/api/v1/jobs/", fields, format="json")
    assert answer.status_code == 201, answer.content
    a_round(cluster)
    return Assignment.objects.get(job=answer.json()["id"], node=node), client, user


def accept(assignment: Any) -> Any:
    headers = {"Authorization": f"Bearer {NODE_TOKEN}", PROTOCOL_HEADER: "1"}
    body = json.dumps({"epoch": 1, "fence": assignment.fence})
    url = f"/api/agent/v1/assignments/{assignment.pk}/accept"
    return SiteClient().put(url, body, content_type="application/json", headers=headers)


def test_only_the_agent_that_accepts_is_told_and_nothing_keeps_it(
    offered: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assignment, client, user = offered
    given = accept(assignment)
    assert given.json()["secrets"] == {"WANDB_API_KEY": VALUE}
    assert VALUE not in json.dumps(given.json()["environment"])
    everything = "".join(
        serializers.serialize("json", model._default_manager.all()) for model in apps.get_models()
    )
    assert "WANDB_API_KEY" in everything, "the dump does not hold what it should be searched for"
    assert VALUE not in everything
    assert Round.objects.exists()
    assert VALUE not in caplog.text
    browser = SiteClient()
    browser.force_login(user)
    job = assignment.job_id
    for path in ("/", f"/jobs/{job}/", f"/submit/?from={job}"):
        assert VALUE not in browser.get(path).content.decode()
    for path in (
        "",
        f"{job}/",
        f"{job}/events/",
        f"{job}/attempts/",
        f"{job}/assignments/",
        f"{job}/logs/",
    ):
        assert VALUE not in client.get(f"/api/v1/jobs/{path}").content.decode()
    assert VALUE not in client.get("/api/v1/teams/research/secrets/").content.decode()


@pytest.mark.django_db(transaction=True)
def test_the_bytes_of_the_database_do_not_hold_it(offered: Any, tmp_path: Any) -> None:
    accept(offered[0])
    if connection.vendor == "sqlite":
        raw = connection.connection.serialize()
    else:
        with connection.cursor() as cursor:
            cursor.execute("SELECT ciphertext FROM jobs_secret")
            raw = b"".join(bytes(row[0]) for row in cursor.fetchall())
    assert raw
    assert VALUE.encode() not in raw


def test_what_a_job_prints_is_masked_wherever_the_pieces_are_cut() -> None:
    masker, text = Masker([VALUE]), f"key={VALUE}\nagain {VALUE}{VALUE}\n".encode()
    for cut in range(1, len(text)):
        shipped, rest = b"", b""
        for piece in (text[:cut], text[cut:]):
            rest += piece
            held = masker.held_back(rest) if piece is not text[cut:] else 0
            ready, kept = rest[: len(rest) - held], rest[len(rest) - held :]
            shipped, rest = shipped + masker.piece(ready), kept
        assert VALUE.encode() not in shipped
        assert len(shipped) == len(text)
