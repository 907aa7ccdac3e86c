"""One member's flood, and what it costs the others: event streams, what-ifs, YAML, logins."""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import django
import uvloop
from django.contrib.auth.models import User
from django.test import Client

from experiments.load.clients import Answers, json_request, offer, request
from experiments.load.greedy import Greedy, flood
from experiments.load.scenarios import Figures, Stage, a_job
from experiments.load.seed import Seeded
from experiments.load.watch import web_processes

OTHERS_PER_S, CONNECTIONS, WARM_UP_S = 15.0, 32, 5.0


@dataclass(frozen=True, slots=True)
class Flood:
    """Members that go on, and a greedy one."""

    stage: Stage
    greedy: Greedy
    make: Callable[[int], bytes]

    @classmethod
    def of(cls, stage: Stage, seeded: Seeded) -> "Flood":
        """Log everybody in, and warm the server up, which then knows them."""
        session = _session("load-0")
        greedy = Greedy(stage.place, stage.host, seeded.cluster, seeded.tokens[0], session)
        found = cls(stage, greedy, _others(stage, seeded))
        uvloop.run(found._offered(WARM_UP_S))
        return found

    def before(self, seconds: float) -> Figures:
        """Return the others' figures alone."""
        return {**uvloop.run(self._offered(seconds)).summary(), "web_mb": web_mb()}

    def beside(self, seconds: float) -> Figures:
        """Return the others' figures beside the flood, whose answers are counted."""
        spawn = get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn, initializer=django.setup) as pool:
            pool.submit(flood, self.greedy, 0.0).result()  # it has started before it counts
            counts = pool.submit(flood, self.greedy, seconds)
            answers = uvloop.run(self._offered(seconds))
            sent = dict(sorted(counts.result().items()))
        return {**answers.summary(), "web_mb": web_mb(), "flood": sent}

    async def _offered(self, seconds: float) -> Answers:
        return await offer(
            self.make,
            self.stage.place,
            rate_per_s=OTHERS_PER_S,
            seconds=seconds,
            connections=CONNECTIONS,
        )


def web_mb() -> int:
    """Most memory that the web processes have had, each at its peak, together.

    Of a file that several have mapped the pages count once, as for the limit of a container.
    """
    peaks, shared, once = 0, 0, defaultdict[str, int](int)
    for process in web_processes():
        text = Path(f"/proc/{process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", text)
        peaks += 1024 * int(found[1]) if found else 0
        for mapped in process.memory_maps():
            if mapped.path.startswith("/"):
                shared += mapped.shared_clean
                once[mapped.path] = max(once[mapped.path], mapped.shared_clean)
    return round((peaks - shared + sum(once.values())) / 1e6)


def _others(stage: Stage, seeded: Seeded) -> Callable[[int], bytes]:
    """Pages, lists and submissions of all members but the first."""
    users = [f"load-{i}" for i in range(1, len(seeded.tokens))]
    cookies = {name: f"sessionid={_session(name)}" for name in users}
    numbers = itertools.count(1_000_000)

    def make(number: int) -> bytes:
        who = 1 + number % len(users)
        page = {"Cookie": cookies[f"load-{who}"]}
        token = seeded.tokens[who]
        match number // len(users) % 4:
            case 0:
                return request("GET", "/", stage.host, page)
            case 1:
                return request("GET", "/nodes/", stage.host, page)
            case 2:
                bearer = {"Authorization": f"Bearer {token}"}
                return request("GET", "/api/v1/jobs/", stage.host, bearer)
            case _:
                own = next(numbers) * len(seeded.teams) + who
                return json_request("/api/v1/jobs/", stage.host, token, a_job(seeded, own, "flood"))

    return make


def _session(name: str) -> str:
    client = Client()
    backend = "django.contrib.auth.backends.ModelBackend"
    client.force_login(User.objects.get(username=name), backend=backend)
    return client.cookies["sessionid"].value
