"""One member's flood, and what it costs the others: event streams, what-ifs, YAML, logins."""

import asyncio
import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvloop
from django.contrib.auth.models import User
from django.test import Client

from experiments.load.clients import Answers, Caller, json_request, offer, request
from experiments.load.scenarios import Figures, Stage, a_job
from experiments.load.seed import Seeded
from experiments.load.watch import web_processes

STREAMS, WHAT_IFS, TEXTS, LOGINS = 400, 260, 8, 28
AGAIN_S = 1.0
"""Time after an answer, or the end of a stream, until each asks again."""

OTHERS_PER_S, CONNECTIONS, WARM_UP_S = 15.0, 32, 5.0
HOSTILE = (
    "a: 1" + ":1" * 450_000,
    "[" * 16_000,
    "[" + "[]," * 300_000 + "]",
    "\n".join(f"a{i}: 1" for i in range(9_999)),
)
"""Studies: a number in base 60, brackets, too many lists, and the largest that is still read."""


@dataclass(frozen=True, slots=True)
class Flood:
    """Members that go on, and a greedy one; `session` is the greedy one's."""

    stage: Stage
    seeded: Seeded
    session: str
    make: Callable[[int], bytes]

    @classmethod
    def of(cls, stage: Stage, seeded: Seeded) -> "Flood":
        """Log everybody in, and warm the server up, which then knows them."""
        found = cls(stage, seeded, _session("load-0"), _others(stage, seeded))
        uvloop.run(found._offered(WARM_UP_S))
        return found

    def before(self, seconds: float) -> Figures:
        """Return the others' figures alone."""
        return {**uvloop.run(self._offered(seconds)).summary(), "web_mb": web_mb()}

    def beside(self, seconds: float) -> Figures:
        """Return the others' figures beside the flood, whose answers are counted."""
        answers, counts = uvloop.run(self._flooded(seconds))
        return {**answers.summary(), "web_mb": web_mb(), "flood": dict(sorted(counts.items()))}

    async def _flooded(self, seconds: float) -> tuple[Answers, Counter[str]]:
        counts: Counter[str] = Counter()
        greedy = asyncio.gather(*_greedy(self.stage, self.seeded, self.session, counts))
        answers = await self._offered(seconds)
        greedy.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await greedy
        return answers, counts

    async def _offered(self, seconds: float) -> Answers:
        return await offer(
            self.make,
            self.stage.place,
            rate_per_s=OTHERS_PER_S,
            seconds=seconds,
            connections=CONNECTIONS,
        )


def web_mb() -> int:
    """Most memory that the web processes have had, together."""
    peaks = 0
    for process in web_processes():
        text = Path(f"/proc/{process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", text)
        peaks += int(found[1]) if found else 0
    return round(peaks * 1024 / 1e6)


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


def _greedy(
    stage: Stage, seeded: Seeded, session: str, counts: Counter[str]
) -> Iterator[Awaitable[None]]:
    csrf = "f" * 32
    cookie = {"Cookie": f"sessionid={session}; csrftoken={csrf}"}
    question = {"policy": "fifo", "parameters": {}}
    path = f"/api/v1/clusters/{seeded.cluster}/what-if/"
    what_if = json_request(path, stage.host, seeded.tokens[0], question)
    for _ in range(STREAMS):
        yield _stream(stage, request("GET", "/live/", stage.host, cookie), counts)
    for _ in range(WHAT_IFS):
        yield _again(stage, "what-if", [what_if], counts)
    texts = [_form(stage, "/simulations/new/", cookie, csrf, study=text) for text in HOSTILE]
    for _ in range(TEXTS):
        yield _again(stage, "yaml", texts, counts)
    for number in range(LOGINS):
        wrong = {"username": f"load-{number % 8}", "password": f"wrong {number}"}
        form = _form(stage, "/login/", {"Cookie": f"csrftoken={csrf}"}, csrf, **wrong)
        yield _again(stage, "login", [form], counts, local=f"127.0.1.{number + 1}")


def _form(stage: Stage, path: str, headers: dict[str, str], csrf: str, **typed: str) -> bytes:
    part = '--part\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    fields = {"csrfmiddlewaretoken": csrf, **typed}.items()
    body = "".join(part.format(*field) for field in fields).encode() + b"--part--\r\n"
    kind = {
        "Content-Type": "multipart/form-data; boundary=part",
        "Content-Length": str(len(body)),
    }
    return request("POST", path, stage.host, {**headers, **kind}) + body


async def _again(
    stage: Stage, name: str, requests: list[bytes], counts: Counter[str], local: str = ""
) -> None:
    """Ask in turn, each time a while after the answer, until this is cancelled."""
    caller = Caller(*stage.place, local=local)
    try:
        for data in itertools.cycle(requests):
            try:
                status, _ = await caller.ask(data)
                counts[f"{name} {status}"] += 1
            except (OSError, TimeoutError) as error:
                counts[f"{name} {type(error).__name__}"] += 1
            await asyncio.sleep(AGAIN_S)
    finally:
        caller.close()


async def _stream(stage: Stage, data: bytes, counts: Counter[str]) -> None:
    """Follow a stream, and begin another when it ends, until this is cancelled."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(*stage.place)
            try:
                writer.write(data)
                counts[f"stream {(await reader.readline())[9:12].decode()}"] += 1
                while await reader.read(4096):
                    pass
            finally:
                writer.close()
        await asyncio.sleep(AGAIN_S)
