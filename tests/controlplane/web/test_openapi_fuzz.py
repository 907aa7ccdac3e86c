"""The API and the agent protocol under requests made from their document: no server error, no
answer it does not describe.

`make fuzz REQUESTS=100000 SEED=7` runs the same for longer.
"""

import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest
import schemathesis
from django.conf import settings
from django.db import connection
from knox.models import AuthToken

from clusters.models import Node
from clusters.services.enrolment import issue_enrolment_token, sha256
from controlplane.execution.protocol import long_poll
from jobs.models import Job, TeamRole
from jobs.secrets import set_secret
from loadmaster.protocol import PROTOCOL_HEADER, PROTOCOL_VERSION
from tests.builders import a_cluster, a_job, a_team, a_user
from tests.builders_agents import CLOCK, SECRET, a_node_with_agent, a_running_assignment, an_offer
from tests.builders_asgi import site
from tests.builders_browser import PASSWORD, serving
from tests.builders_fuzz import REQUESTS, SEED, Caller, Fuzz
from tests.builders_jobs import a_token, output
from tests.builders_pages import losses

# Committed rows: outside of Django's own test client a request's end closes the connection, and
# with it a test's transaction.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.timeout(7200)]
LIVE_PART = 20
"""One request in so many is made once more, of a server in a process of its own."""

ROLES = ("nobody", "a member", "an operator", "an agent")
TOKEN = "the token of the fuzzed node"
_numbers = count(1)


class World:
    """Rows that requests may name, and tokens for every role. It is asked anew before every call:
    calls change it.
    """

    def __init__(self) -> None:
        self.cluster = a_cluster(name="lab", **CLOCK)
        self.team = a_team("research")
        self.member, self.operator = (
            a_user("ada", team=self.team, role=TeamRole.MAINTAINER),
            a_user("grace", operator=True),
        )
        set_secret(self.team, "wandb", "a secret value")
        self.node = a_node_with_agent(self.cluster, token=TOKEN, name="volta")
        self.other = a_node_with_agent(self.cluster, token="another token", name="tesla")
        running = a_running_assignment(
            self.node, a_job(self.cluster, team=self.team, user=self.member)
        )
        output(running, b"step 1\n", b"step 2\n")
        losses(running, count=3)
        self.offer = an_offer(self.other, a_job(self.cluster, team=self.team, user=self.member))
        self.assignments = [running, self.offer]
        for state in ("held", "failed", "cancelled", "queued"):
            a_job(self.cluster, team=self.team, user=self.member, state=state)
        self.jobs = [str(pk) for pk in Job.objects.values_list("pk", flat=True)]
        self._tokens: dict[str, str] = {}

    def headers(self, role: str, path: str) -> dict[str, str]:
        """The role's headers for a call of that path."""
        if role == "nobody":
            return {}
        if role == "an agent":
            return {
                "Authorization": f"Bearer {self._agent_token(path)}",
                PROTOCOL_HEADER: str(PROTOCOL_VERSION),
            }
        return {"Authorization": f"Bearer {self._token(role)}"}

    def path_names(self, path: str) -> dict[str, Any]:
        """Values of path parameters that exist."""
        number = next(_numbers)
        assignment = self.assignments[number % 2]
        ids: dict[str, Any] = {
            "/jobs/": self.jobs[number % len(self.jobs)],
            "/nodes/": str(self.node.pk),
        }
        pk = next((value for part, value in ids.items() if part in path), "1")
        names = {
            "id": pk,
            "pk": pk,
            "name": "wandb" if "/secrets/" in path else "lab",
            "team": "research",
            "stream": "stdout",
        }
        return {**names, "node_id": str(self.node.pk), "assignment_id": str(assignment.pk)}

    def body_names(self, path: str) -> dict[str, Any]:
        """Values of fields that fit the rows."""
        node = Node.objects.get(pk=self.node.pk)
        device = {"uuid": f"GPU-{next(_numbers)}", "gpu_type": "V100", "memory_gb": 16.0}
        agent = {
            "epoch": node.epoch,
            "fence": 1,
            "seq": next(_numbers),
            "offset": 0,
            "wait": 0,
            "cursor": 0,
            "protocol": 1,
        }
        machine = {"devices": [device], "machine_id": node.machine_id, "session_secret": SECRET}
        known = (
            machine if "session" in path else {"devices": [device] if "register" in path else []}
        )
        return {
            **agent,
            **known,
            "cluster": "lab",
            "team": "research",
            "username": "ada",
            "password": "a long password",
        }

    def _agent_token(self, path: str) -> str:
        if path.endswith("register"):
            return issue_enrolment_token(self.cluster)
        Node.objects.filter(pk=self.node.pk).update(token_sha256=sha256(TOKEN))
        return TOKEN

    def _token(self, role: str) -> str:
        user = self.operator if role == "an operator" else self.member
        if not AuthToken.objects.filter(user=user).exists() or role not in self._tokens:
            self._tokens[role] = a_token(user)
        return self._tokens[role]


@pytest.fixture
def _quiet() -> Iterator[None]:
    """Thousands of refusals are what is wanted; errors are still logged."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("role", ROLES)
def test_no_request_breaks_the_server_or_the_document(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "LONGEST_WAIT_S", 0.01)
    monkeypatch.setattr(settings, "THROTTLES", dict.fromkeys(settings.THROTTLES, (10**9, 1)))
    world = World()
    operator = world.headers("an operator", "")
    document: Any = schemathesis.openapi.from_wsgi(
        "/api/schema?format=json", site(), headers=operator
    )
    caller = Caller(lambda path: world.headers(role, path), reach(role))
    fuzz = Fuzz(document, caller, world.path_names, world.body_names)
    budget = math.ceil(REQUESTS / len(ROLES)) // (1 if connection.vendor == "sqlite" else 10)
    assert fuzz.run(budget, SEED) >= budget
    assert not fuzz.problems, "\n\n".join(fuzz.problems.values())
    assert {"200", "201", "204"} & set(caller.answers)


@pytest.mark.usefixtures("_quiet")
def test_a_server_process_of_its_own_stands_it_too(tmp_path: Path) -> None:
    with a_database() as database, serving(tmp_path, database) as server:
        given = httpx.post(
            f"{server.url}/api/v1/tokens/",
            json={"username": "grace", "password": PASSWORD},
            timeout=60,
        )
        headers = {"Authorization": f"Bearer {given.json()['token']}"}
        document: Any = schemathesis.openapi.from_url(
            f"{server.url}/api/schema?format=json", headers=headers
        )
        names = {
            "id": server.ids["running"],
            "pk": server.ids["round"],
            "name": "demo",
            "team": "vision",
            "cluster": "demo",
        }
        caller = Caller(lambda path: headers, lambda path: path.startswith("/api/v1/"))
        fuzz = Fuzz(
            document.exclude(path_regex="/tokens/|/directives"),
            caller,
            lambda path: names,
            lambda path: names,
            server.url,
        )
        fuzz.run(max(100, REQUESTS // LIVE_PART), SEED)
        said = (server.home / "web.log").read_text()
    assert not fuzz.problems, "\n\n".join(fuzz.problems.values())
    assert "200" in caller.answers
    assert "Traceback" not in said, said[-5000:]


@contextmanager
def a_database() -> Iterator[str]:
    """The address of an empty database beside the tests' one on PostgreSQL; "" on SQLite, where a
    server makes its own file.
    """
    if connection.vendor == "sqlite":
        yield ""
        return
    name = f"fuzzed_{uuid4().hex[:8]}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    yield urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


def reach(role: str) -> Callable[[str], bool]:
    """Which paths are for the role: the agents' own for agents, the login alone for nobody, the
    rest for people.
    """
    if role == "nobody":
        return lambda path: path.endswith(("/tokens/", "/register"))
    return lambda path: path.startswith("/api/agent/") == (role == "an agent")
