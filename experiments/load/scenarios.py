"""Scenarios of a run: submissions, pages, a job's way to RUNNING on an idle cluster."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import uvloop
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from clusters.models import GpuType
from controlplane.operations.bootstrap import CLUSTER, TEAM
from experiments.load.agents import percentiles_ms
from experiments.load.clients import Answers, Caller, in_turn, json_request, offer, request
from experiments.load.seed import Seeded, know_kind
from experiments.load.watch import web_processes
from jobs.models import Job, Team

Figures = dict[str, object]
CONNECTIONS = 256
"""Submitters; each waits for its answer, so that few would hold back the offered rate."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The web server's address, and a wait that restarts dead programs."""

    place: tuple[str, int]
    pause: Callable[[float], None]

    @property
    def host(self) -> str:
        """The value of the Host header."""
        return f"{self.place[0]}:{self.place[1]}"


WARM_UP_S = 3.0
"""Submissions that are offered first, to fresh servers, and not measured."""

KILLED_S = 5.0
"""Seconds of submissions while the web server is killed, after the measured ones."""


def hand_in(
    stage: Stage, seeded: Seeded, *, rate_per_s: float, seconds: float, kill: bool
) -> Figures:
    """Single submissions at an offered rate, each with its own key; then some in whose midst the
    web server is killed with -9.

    The figures are of the first ones, after a short warm-up. Every job that was ever acknowledged
    must be in the database afterwards; `lost` counts those that are not.
    """

    def make(series: str, number: int) -> bytes:
        body, token = a_job(seeded, number, "single"), seeded.tokens[number % len(seeded.tokens)]
        return json_request(
            "/api/v1/jobs/", stage.host, token, body, {"Idempotency-Key": f"{series}-{number}"}
        )

    def offered(series: str, for_s: float) -> Awaitable[Answers]:
        return offer(
            partial(make, series),
            stage.place,
            rate_per_s=rate_per_s,
            seconds=for_s,
            connections=CONNECTIONS,
            keep=True,
        )

    bodies = list(
        uvloop.run(_until_killed(offered(f"warm-up-{rate_per_s:g}", WARM_UP_S), None)).bodies
    )
    answers = uvloop.run(_until_killed(offered(f"load-{rate_per_s:g}", seconds), None))
    bodies += answers.bodies
    if kill:
        bodies += uvloop.run(
            _until_killed(offered(f"killed-{rate_per_s:g}", KILLED_S), KILLED_S)
        ).bodies
    _up_again(stage)
    return {
        **answers.summary(),
        "acknowledged": len(bodies),
        "lost": lost([json.loads(b)["id"] for b in bodies]),
    }


def _up_again(stage: Stage, patience_s: float = 60.0) -> None:
    """Wait until the web server answers, which the supervisor has started again."""
    until_s = time.monotonic() + patience_s
    while time.monotonic() < until_s:
        stage.pause(0.5)
        try:
            if uvloop.run(_once(stage, request("GET", "/healthz", stage.host, {})))[0] == 200:
                return
        except OSError:
            continue


def hand_in_bulk(
    stage: Stage, seeded: Seeded, *, rate_per_s: float, seconds: float, size: int
) -> Figures:
    """Sweeps of `size` jobs a call, offered so that `rate_per_s` jobs a second come in."""

    def make(number: int) -> bytes:
        jobs = [
            {"job": a_job(seeded, number, f"bulk-{i}"), "idempotency_key": f"bulk-{number}-{i}"}
            for i in range(size)
        ]
        return json_request(
            "/api/v1/jobs/bulk/",
            stage.host,
            seeded.tokens[number % len(seeded.tokens)],
            {"jobs": jobs},
        )

    answers = uvloop.run(
        offer(
            make,
            stage.place,
            rate_per_s=rate_per_s / size,
            seconds=seconds,
            connections=8,
            keep=True,
        )
    )
    made = [r["job"]["id"] for b in answers.bodies for r in json.loads(b)["results"] if r["job"]]
    took_s = max(answers.ended_s - answers.began_s, 1e-9)
    return {
        **answers.summary(),
        "jobs_per_s": round(len(made) / took_s, 1),
        "acknowledged": len(made),
        "lost": lost(made),
    }


def a_job(seeded: Seeded, number: int, name: str) -> dict[str, object]:
    """A submission of a kind that is measured."""
    return {
        "name": f"{name}-{number}",
        "cluster": seeded.cluster,
        "team": seeded.teams[number % len(seeded.teams)],
        "kind": f"kind-{number % 8}",
        "command": ["python", "train.py", "--seed", str(number)],
        "steps": 1000,
        "gpus": 1,
    }


def lost(ids: list[str]) -> int:
    """Number of these jobs that are not in the database."""
    wanted = {UUID(i) for i in ids}
    rows = [
        set(Job.objects.filter(pk__in=part).values_list("pk", flat=True))
        for part in _parts(list(wanted))
    ]
    return len(wanted) - sum(len(found) for found in rows)


def _parts(ids: list[UUID]) -> Iterator[list[UUID]]:
    return (ids[i : i + 500] for i in range(0, len(ids), 500))


async def _until_killed(work: Awaitable[Answers], after_s: float | None) -> Answers:
    """Answers of the work, during which the web server's processes are killed."""
    task = asyncio.ensure_future(work)
    if after_s is not None:
        await asyncio.sleep(0.5 * after_s)
        for process in web_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    return await task


def read_pages(
    stage: Stage, seeded: Seeded, paths: Mapping[str, str], *, times: int
) -> Iterator[tuple[str, Figures]]:
    """Read each page as a team's member and as an operator; note queries and size."""
    for who, token in (("load-0", seeded.tokens[0]), ("load-operator", seeded.operator_token)):
        client = Client(headers={"host": stage.host})
        client.force_login(
            User.objects.get(username=who), backend="django.contrib.auth.backends.ModelBackend"
        )
        cookie = f"sessionid={client.cookies['sessionid'].value}"
        for name, path in paths.items():
            head = (
                {"Authorization": f"Bearer {token}"}
                if path.startswith("/api/")
                else {"Cookie": cookie}
            )
            data = request("GET", path, stage.host, {**head, "Accept": "*/*"})
            answers = uvloop.run(in_turn([data] * times, stage.place))
            yield (
                f"{name}, {'operator' if who == 'load-operator' else 'member'}",
                {**answers.summary(), **_cost(client, path)},
            )


def pages(seeded: Seeded) -> Mapping[str, str]:
    """Name -> address of what people look at."""
    return {
        "queue": "/",
        "queue, all jobs": "/?state=all",
        "queue, page 100": "/?page=100",
        "queue, search": "/?search=train-99",
        "job that runs": f"/jobs/{seeded.running_job}/",
        "job that waits": f"/jobs/{seeded.waiting_job}/",
        "nodes": "/nodes/",
        "timeline": f"/timeline/figure.json?cluster={seeded.cluster}&span=24h",
        "rounds": "/rounds/",
        "API jobs": "/api/v1/jobs/",
        "API jobs, queued": "/api/v1/jobs/?state=queued&offset=5000",
        "API nodes": "/api/v1/nodes/",
    }


def _cost(client: Client, path: str) -> Figures:
    """Queries and bytes of the page, asked in this process."""
    with CaptureQueriesContext(connection) as queries:
        answer = client.get(path)
    return {"queries": len(queries), "kb": round(len(answer.content) / 1000)}


def start_jobs(stage: Stage, token: str, *, count: int) -> Figures:
    """Seconds from POST to `running` of jobs on an idle cluster, polled every 20 ms."""
    know_kind("start", Team.objects.get(name=TEAM), GpuType.objects.all())
    took_s, states = [], dict[str, int]()
    for number in range(-1, count):  # the first warms the solver up and does not count
        began_s = time.monotonic()
        state, job = _one_start(stage, token, number, began_s)
        if number >= 0:
            states[state] = states.get(state, 0) + 1
        if number >= 0 and state == "running":
            took_s.append(time.monotonic() - began_s)
        _cancelled(stage, token, job)
    return {
        **percentiles_ms(took_s),
        "count": len(took_s),
        "answers": states,
    }


def _one_start(stage: Stage, token: str, number: int, began_s: float) -> tuple[str, str]:
    job = {
        "name": f"start-{number}",
        "cluster": CLUSTER,
        "kind": "start",
        "command": ["sleep", "60"],
        "steps": 1000,
        "gpus": 1,
    }
    _, body = uvloop.run(_once(stage, json_request("/api/v1/jobs/", stage.host, token, job)))
    pk = str(json.loads(body).get("id", ""))
    while time.monotonic() - began_s < 30:
        state = (
            Job.objects.filter(pk=pk).values_list("state", flat=True).first() if pk else "refused"
        )
        if state in ("running", "failed", "cancelled", "refused", None):
            return str(state), pk
        time.sleep(0.02)
    return "waited 30 s", pk


def _cancelled(stage: Stage, token: str, job: str) -> None:
    """End the job, and wait until its GPU is free again and the cluster idle."""
    if not job:
        return
    uvloop.run(
        _once(
            stage,
            request(
                "POST",
                f"/api/v1/jobs/{job}/cancel/",
                stage.host,
                {"Authorization": f"Bearer {token}", "Content-Length": "0"},
            ),
        )
    )
    until_s = time.monotonic() + 30
    while (
        time.monotonic() < until_s
        and Job.objects.filter(pk=job).exclude(state="cancelled").exists()
    ):
        time.sleep(0.05)
    stage.pause(0.3)


async def _once(stage: Stage, data: bytes) -> tuple[int, bytes]:
    caller = Caller(*stage.place)
    try:
        return await caller.ask(data)
    finally:
        caller.close()
