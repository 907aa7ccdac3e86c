"""Large arrays of one member, and what they cost the others: heartbeats, leases, submissions."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import uvloop
from asgiref.sync import sync_to_async
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
"""Name of the agents' cluster. Each agent holds a lease; the arrays are in another cluster."""

HEARTBEAT_S = 5.0
"""Seconds between the heartbeats of an agent."""

SUBMISSIONS_PER_S = 5.0
"""Rate at which the second member submits single jobs."""

VERBS = ("hold", "release", "cancel")
"""Actions of the first member on each array, in this order."""

HELD_ARRAYS = 3
"""Held arrays that pages are read with."""


class FirstMember:
    """Member who submits large arrays, and holds, releases and cancels each.

    `seconds` has how long each request took, by its action; those that failed have names of their
    own, such as "hold 503" and "hold without answer".
    """

    def __init__(self, stage: Stage, seeded: Seeded, size: int) -> None:
        """`size`: elements of an array."""
        self.stage = stage
        self.seeded = seeded
        self.size = size
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    async def work(self, seconds: float) -> None:
        """Submit arrays and act on them, one after another, until this time is over."""
        caller = Caller(*self.stage.place)
        until_s = time.monotonic() + seconds
        number = 0
        while time.monotonic() < until_s:
            number += 1
            job = a_job(self.seeded, 0, f"array-{number}")
            array = {**job, "array": f"0-{self.size - 1}"}
            first_element = await self._post(caller, "submit", "/api/v1/jobs/", array)
            if first_element is None:
                continue
            array_id = first_element["array"]["id"]
            for verb in VERBS:
                await self._post(caller, verb, f"/api/v1/arrays/{array_id}/{verb}/", {})
        caller.close()

    async def _post(self, caller: Caller, action: str, path: str, data: object) -> Any:
        """Send a request and note its seconds; return the answer's JSON, None if it failed."""
        request = json_request(path, self.stage.host, self.seeded.tokens[0], data)
        sent_s = time.monotonic()
        try:
            status, body = await caller.ask(request)
        except (OSError, TimeoutError):
            self.seconds[f"{action} without answer"].append(time.monotonic() - sent_s)
            return None
        took_s = time.monotonic() - sent_s
        if not 200 <= status < 300:
            self.seconds[f"{action} {status}"].append(took_s)
            return None
        self.seconds[action].append(took_s)
        return json.loads(body)


async def submit_as_second_member(stage: Stage, seeded: Seeded, seconds: float) -> Answers:
    """Submit single jobs of another team at an even rate."""

    def make(number: int) -> bytes:
        # The second team's number, for `a_job` takes the teams in turn.
        job = a_job(seeded, number * len(seeded.teams) + 1, "second")
        return json_request("/api/v1/jobs/", stage.host, seeded.tokens[1], job)

    return await offer(
        make, stage.place, rate_per_s=SUBMISSIONS_PER_S, seconds=seconds, connections=16
    )


async def run_together(
    stage: Stage,
    seeded: Seeded,
    first: FirstMember,
    cluster: Cluster,
    fleet: Sequence[SimulatedAgent],
    seconds: float,
) -> tuple[Traffic, int, Answers]:
    """Run agents and both members for this time.

    Returns heartbeats, the leases lost by the last of them, and the second member's answers.
    """

    async def beat() -> tuple[Traffic, int]:
        traffic = await run_agents(fleet, *stage.place, seconds=seconds, heartbeat_s=HEARTBEAT_S)
        # The first member may still wait for an answer. Without heartbeats leases end rightly.
        return traffic, await sync_to_async(leases_lost)(cluster)

    (heartbeats, lost), answers, _ = await asyncio.gather(
        beat(),
        submit_as_second_member(stage, seeded, seconds),
        first.work(seconds),
    )
    return heartbeats, lost, answers


def leases_lost(cluster: Cluster) -> int:
    """Count launches of the fleet that no longer run, and nodes that were taken for lost."""
    nodes = Node.objects.filter(cluster=cluster)
    launches = Assignment.objects.filter(node__in=nodes)
    ended = launches.exclude(state=AssignmentState.RUNNING).count()
    lost = NodeEvent.objects.filter(node__in=nodes, event="lost").count()
    return ended + lost


def arrays_in_turn(
    stage: Stage, seeded: Seeded, *, size: int, agents: int, seconds: float
) -> Figures:
    """Let one member submit, hold, release and cancel arrays of `size`, a second one submit jobs.

    Returns the heartbeats' percentiles, the leases lost, the second member's percentiles, and how
    often each action on an array was answered, with the seconds that it took at most.
    """
    # 1. A fleet whose agents all hold a lease.
    cluster = Cluster.objects.create(name=FLEET, policy="fifo", heartbeat_s=HEARTBEAT_S)
    fleet = make_fleet(cluster, agents, busy=1.0, prefix=FLEET)

    # 2. Its heartbeats, beside the requests of both members.
    first = FirstMember(stage, seeded, size)
    run = run_together(stage, seeded, first, cluster, fleet, seconds)
    heartbeats, lost, second = uvloop.run(run)

    # 3. Figures.
    return {
        **percentiles_ms(heartbeats.due_s),
        "answers": dict(heartbeats.answers),
        "leases": len(fleet),
        "leases_lost": lost,
        **percentiles_ms(second.seconds, "second_member_"),
        "second_member": dict(second.statuses),
        "actions": {action: len(took_s) for action, took_s in first.seconds.items()},
        "longest_s": {action: round(max(took_s), 2) for action, took_s in first.seconds.items()},
    }


def hold_arrays(seeded: Seeded, *, size: int) -> Mapping[str, str]:
    """Submit held arrays of the first team; return the paths of pages that show them, by name."""
    user = User.objects.get(username="load-0")
    for number in range(HELD_ARRAYS):
        job = a_job(seeded, 0, f"held-{number}")
        last = job_submit(user, {**job, "array": f"0-{size - 1}", "hold": True}).job
    return {
        "queue, held arrays": "/",
        "queue, held arrays, waiting": "/?state=waiting",
        "queue, held arrays, all jobs": "/?state=all",
        "array": f"/arrays/{last.array_id}/",
        "API jobs, held arrays folded": "/api/v1/jobs/?fold=true&active=true",
    }
