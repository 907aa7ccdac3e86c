"""Nested and wide bodies at every address, and floods of a server in a process of its own: no
server error, and whoever comes after is answered.

`make fuzz REQUESTS=100000 SEED=7` runs the same for longer.
"""

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from django.test import Client
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from controlplane.web.bounded_data import DEEPEST
from loadmaster.protocol import PROTOCOL_HEADER, PROTOCOL_VERSION
from tests.builders import a_cluster, a_job, a_team, a_user
from tests.builders_agents import NODE_TOKEN, a_node_with_agent
from tests.builders_asgi import SiteClient
from tests.builders_browser import PASSWORD, serving
from tests.builders_fuzz import REQUESTS, SEED
from tests.builders_jobs import a_token

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
AT_ONCE = 200
FIELDS = st.sampled_from(
    ["name", "command", "environment", "labels", "parameters", "cluster", "workload", "policies",
     "jobs", "job", "choices", "username", "samples", "assignments", "devices", "sbatch", "array"]
)  # fmt: skip
CHARSETS = st.sampled_from(["utf-8", "utf-16", "utf-7", "cp037", "latin-1", "rot13", "none at all"])


def nested(depth: int, kind: str) -> str:
    """Lists or objects within each other."""
    opening, closing = ("[", "]") if kind == "[" else ('{"a":', "}")
    return opening * depth + ("1" if kind == "{" else "") + closing * depth


DEPTHS = st.integers(1, 3_000) | st.integers(DEEPEST - 3, DEEPEST + 3)
DEEP = st.builds(nested, DEPTHS, st.sampled_from("[{"))
WIDE = st.builds(
    lambda count, item: f"[{','.join([item] * count)}]",
    st.integers(0, 30_000) | st.integers(190_000, 210_000),
    st.sampled_from(["[]", "{}", '""', "1", "null", '{"name":"a"}'][:5]),
)
CUT = st.builds(lambda text, at: text[: len(text) // at], DEEP | WIDE, st.integers(1, 4))
LONG = st.builds(
    lambda unit, count: json.dumps(unit * count),
    st.sampled_from(["a", "a ", "'", "'a' ", "\\", "\n", "1,", "-H", "0-9999,", "--export=A,"]),
    st.integers(1, 250_000),
)
MANY = st.builds(
    lambda head, count: json.dumps({f"{head}{number}": "" for number in range(count)}),
    st.sampled_from(["A", "nam"]),
    st.integers(1, 100_000),
)
SBATCH = st.builds(
    lambda lines, options, arguments: (
        f'{{"sbatch":{{"script":{lines},"options":[{options}],"arguments":[{arguments}]}}}}'
    ),
    st.builds(
        lambda line, count: json.dumps("#!/bin/sh\n" + line * count),
        st.sampled_from(["\n", "#SBATCH --tme\n", "#SBATCH -n1 -n2\n", "#SBATCH", "'", "srun "]),
        st.integers(1, 20_000),
    ),
    LONG,
    LONG,
)
INNER = DEEP | WIDE | CUT | LONG | MANY
BODIES = INNER | SBATCH | st.builds(lambda field, inner: f'{{"{field}":{inner}}}', FIELDS, INNER)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.django_db(transaction=True)
def test_no_nested_or_wide_body_breaks_an_address() -> None:
    team = a_team("research")
    member, operator = a_user("ada", team=team), a_user("grace", operator=True)
    node = a_node_with_agent(a_cluster(name="lab"))
    names = {"id": str(a_job(node.cluster, team=team, user=member).pk), "name": "lab"}
    names |= {"team": "research", "stream": "stdout", "node_id": str(node.pk)}
    people = {"Authorization": f"Bearer {a_token(operator)}"}
    agent = {"Authorization": f"Bearer {NODE_TOKEN}", PROTOCOL_HEADER: str(PROTOCOL_VERSION)}
    client, answers = SiteClient(), Counter[int]()
    document = client.get("/api/schema?format=json", headers=people).json()
    writing = [
        (method.upper(), re.sub(r"{(\w+)}", lambda of: names.get(of[1], names["id"]), path))
        for path, methods in document["paths"].items()
        for method in methods
        if method in ("post", "put", "patch")
    ]
    assert len(writing) > 30

    @seed(SEED)
    @settings(
        max_examples=max(100, REQUESTS // 40),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(writing), BODIES, CHARSETS)
    def send(call: tuple[str, str], body: str, charset: str) -> None:
        method, path = call
        data = body.encode("utf-16" if charset == "utf-16" else "utf-8")
        headers = agent if path.startswith("/api/agent/") else people
        kind = f"application/json; charset={charset}"
        answer = client.generic(method, path, data, content_type=kind, headers=headers)
        answers[answer.status_code] += 1
        assert answer.status_code < 500, (call, charset, body[:200], answer.content[:500])

    send()
    assert answers[400] > answers.total() // 4


@pytest.mark.django_db
def test_no_nested_or_wide_text_breaks_a_page(client: Client) -> None:
    client.force_login(a_user("ada", team=a_team("research")))
    a_cluster(name="lab")
    places = st.sampled_from(
        [("/submit/", "yaml"), ("/what-if/", "parameters"),
         *(("/simulations/new/", field) for field in ("study", "cluster_yaml", "options"))]
    )  # fmt: skip

    @seed(SEED)
    @settings(
        max_examples=max(50, REQUESTS // 80),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(places, BODIES)
    def send(place: tuple[str, str], text: str) -> None:
        path, field = place
        typed = {"cluster": "lab" if path == "/what-if/" else "written", "policy": "fifo"}
        answer = client.post(path, {**typed, "workload": "poisson", field: text})
        assert answer.status_code in (200, 302, 413, 422), (place, text[:200], answer.status_code)

    send()


def test_a_flood_is_refused_and_who_comes_after_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        given = {"username": "grace", "password": PASSWORD}
        token = httpx.post(f"{server.url}/api/v1/tokens/", json=given, timeout=60).json()["token"]
        bearer = {"Authorization": f"Bearer {token}"}
        rounds = max(1, REQUESTS // 4_000)
        statuses = asyncio.run(flooded(server.url, bearer, rounds))
        after = httpx.get(f"{server.url}/api/v1/jobs/", headers=bearer, timeout=60)
        said = (server.home / "web.log").read_text()
    assert after.status_code == 200
    assert {status for status in statuses if status >= 500} == set()
    assert statuses[429] > 0
    assert statuses[200] > 0
    assert statuses[0] < statuses.total() / 2
    assert "Traceback" not in said, said[-5000:]


async def flooded(url: str, bearer: dict[str, str], rounds: int) -> Counter[int]:
    """Statuses of requests at once, 0 for one without answer: a part hangs up before."""
    what_if = json.dumps({"policy": "fifo", "parameters": {}}).encode()
    calls: list[tuple[str, str, bytes]] = [
        ("GET", "/api/v1/jobs/", b""),
        ("POST", "/api/v1/clusters/demo/what-if/", what_if),
        ("POST", "/api/v1/jobs/", nested(40, "[").encode() + b" " * 1_000_000),
        ("GET", "/login/", b""),
    ]
    headers = {**bearer, "Content-Type": "application/json"}
    statuses: Counter[int] = Counter()
    limits = httpx.Limits(max_connections=4 * AT_ONCE)

    async def ask(number: int) -> None:
        method, path, body = calls[number % len(calls)]
        patience_s = 0.05 if number % 5 == 0 else 120.0
        try:
            answer = await client.request(
                method, url + path, headers=headers, content=body, timeout=patience_s
            )
        except httpx.TransportError:
            # It hung up, or, starved of a processor, took longer than the server waits for a body.
            statuses[0] += 1
        else:
            statuses[answer.status_code] += 1

    async with httpx.AsyncClient(limits=limits) as client:
        for _ in range(rounds):
            await asyncio.gather(*(ask(number) for number in range(4 * AT_ONCE)))
    return statuses
