"""Large arrays of one member, and what they cost the others: heartbeats, leases, submissions."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

import uvloop
from django.contrib.auth.models import User

from clusters.models import Cluster, Node, NodeEvent
from experiments.load.agents import Traffic, percentiles_ms, run_agents
from experiments.load.clients import Answers, Caller, json_request, offer
from experiments.load.fleet import SimulatedAgent, make_fleet
from experiments.load.scenarios import Figures, Stage, a_job
from experiments.load.seed import Seeded
from jobs.models import Assignment
from jobs.services import job_submit
from loadmaster.protocol import AssignmentState

FLEET = "arrays"
"""Cluster of the agents, all of which hold a lease; the arrays are another's."""

HELD = 3
VERBS = ("hold", "release", "cancel")
OTHERS_PER_S = 5.0
HEARTBEAT_S = 5.0

Took = Mapping[str, Sequence[float]]


def arrays_in_turn(
    stage: Stage, seeded: Seeded, *, size: int, agents: int, seconds: float
) -> Figures:
    """Let one member submit, hold, release and cancel arrays of `size`, a second one submit jobs.

    Returns the heartbeats' percentiles, the leases lost, the second member's percentiles, and how
    often each action on an array was answered, with the seconds that it took at most.
    """
    cluster = Cluster.objects.create(name=FLEET, policy="fifo", heartbeat_s=HEARTBEAT_S)
    fleet = make_fleet(cluster, agents, busy=1.0, prefix=FLEET)
    traffic, others, took = uvloop.run(_together(stage, seeded, fleet, size, seconds))
    return {
        **percentiles_ms(traffic.due_s),
        "answers": dict(traffic.answers),
        "leases": len(fleet),
        "leases_lost": _leases_lost(cluster),
        **percentiles_ms(others.seconds, "second_member_"),
        "second_member": dict(others.statuses),
        "actions": {name: len(of) for name, of in took.items()},
        "longest_s": {name: round(max(of), 2) for name, of in took.items() if of},
    }


async def _together(
    stage: Stage, seeded: Seeded, fleet: Sequence[SimulatedAgent], size: int, seconds: float
) -> tuple[Traffic, Answers, Took]:
    beats = run_agents(fleet, *stage.place, seconds=seconds, heartbeat_s=HEARTBEAT_S)
    return await asyncio.gather(
        beats,
        _second_member(stage, seeded, seconds),
        _first_member(stage, seeded, size, seconds),
    )


async def _second_member(stage: Stage, seeded: Seeded, seconds: float) -> Answers:
    """Submit single jobs at an even rate, each answered before the next is due."""

    def make(number: int) -> bytes:
        job = a_job(seeded, number * len(seeded.teams) + 1, "second")
        return json_request("/api/v1/jobs/", stage.host, seeded.tokens[1], job)

    return await offer(make, stage.place, rate_per_s=OTHERS_PER_S, seconds=seconds, connections=16)


async def _first_member(stage: Stage, seeded: Seeded, size: int, seconds: float) -> Took:
    """Submit an array and act on it, again and again; return the seconds of each request."""
    took = defaultdict[str, list[float]](list)
    caller = Caller(*stage.place)
    until_s = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until_s:
        number += 1
        array = {**a_job(seeded, 0, f"array-{number}"), "array": f"0-{size - 1}"}
        body = await _timed(caller, stage, seeded, took, "submit", "/api/v1/jobs/", array)
        for verb in VERBS if body else ():
            path = f"/api/v1/arrays/{body['array']['id']}/{verb}/"
            await _timed(caller, stage, seeded, took, verb, path, {})
    caller.close()
    return took


async def _timed(
    caller: Caller, stage: Stage, seeded: Seeded, took: defaultdict[str, list[float]],
    name: str, path: str, data: object,
) -> Mapping[str, Mapping[str, str]]:  # fmt: skip
    """Send a request of the first member; return the body of its answer, empty if it failed."""
    began_s = time.monotonic()
    try:
        status, body = await caller.ask(json_request(path, stage.host, seeded.tokens[0], data))
    except (OSError, TimeoutError):
        took[f"{name} without answer"].append(time.monotonic() - began_s)
        return {}
    done = 200 <= status < 300
    took[name if done else f"{name} {status}"].append(time.monotonic() - began_s)
    found: Mapping[str, Mapping[str, str]] = json.loads(body) if done else {}
    return found


def hold_arrays(seeded: Seeded, *, size: int) -> Mapping[str, str]:
    """Submit three held arrays of the first team; return the pages that show them, by name."""
    user = User.objects.get(username="load-0")
    for number in range(HELD):
        job = {**a_job(seeded, 0, f"held-{number}"), "array": f"0-{size - 1}", "hold": True}
        array = job_submit(user, job).job.array_id
    return {
        "queue, held arrays": "/",
        "queue, held arrays, waiting": "/?state=waiting",
        "queue, held arrays, all jobs": "/?state=all",
        "array": f"/arrays/{array}/",
        "API jobs, held arrays folded": "/api/v1/jobs/?fold=true&active=true",
    }


def _leases_lost(cluster: Cluster) -> int:
    """Launches of the fleet that run no longer, and nodes that were taken for lost."""
    nodes = Node.objects.filter(cluster=cluster)
    launches = Assignment.objects.filter(node__in=nodes).exclude(state=AssignmentState.RUNNING)
    return launches.count() + NodeEvent.objects.filter(node__in=nodes, event="lost").count()
