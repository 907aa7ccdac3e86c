"""What one greedy member does: event streams, what-ifs, YAML and logins, again and again."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass

import uvloop

from experiments.load.clients import Caller, json_request, request

STREAMS, WHAT_IFS, TEXTS, LOGINS = 400, 260, 8, 28
AGAIN_S = 1.0
"""Time after an answer, or the end of a stream, until each asks again."""

HOSTILE = (
    "a: 1" + ":1" * 450_000,
    "[" * 16_000,
    "[" + "[]," * 300_000 + "]",
    "\n".join(f"a{i}: 1" for i in range(9_999)),
)
"""Studies: a number in base 60, brackets, too many lists, and the largest that is still read."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """The server's address and `Host` header, a cluster, the member's token and session."""

    place: tuple[str, int]
    host: str
    cluster: str
    token: str
    session: str


def flood(member: Greedy, seconds: float) -> Counter[str]:
    """Flood the server for so long, and return the answers by request and status.

    It is for a process of its own, as it would else delay who measures.
    """
    return uvloop.run(_flooded(member, seconds))


async def _flooded(member: Greedy, seconds: float) -> Counter[str]:
    counts: Counter[str] = Counter()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*_requests(member, counts)), seconds)
    return counts


def _requests(member: Greedy, counts: Counter[str]) -> Iterator[Awaitable[None]]:
    csrf = "f" * 32
    cookie = {"Cookie": f"sessionid={member.session}; csrftoken={csrf}"}
    question = {"policy": "fifo", "parameters": {}}
    path = f"/api/v1/clusters/{member.cluster}/what-if/"
    what_if = json_request(path, member.host, member.token, question)
    for _ in range(STREAMS):
        yield _stream(member, request("GET", "/live/", member.host, cookie), counts)
    for _ in range(WHAT_IFS):
        yield _again(member, "what-if", [what_if], counts)
    texts = [_form(member, "/simulations/new/", cookie, csrf, study=text) for text in HOSTILE]
    for _ in range(TEXTS):
        yield _again(member, "yaml", texts, counts)
    for number in range(LOGINS):
        wrong = {"username": f"load-{number % 8}", "password": f"wrong {number}"}
        form = _form(member, "/login/", {"Cookie": f"csrftoken={csrf}"}, csrf, **wrong)
        yield _again(member, "login", [form], counts, local=f"127.0.1.{number + 1}")


def _form(member: Greedy, path: str, headers: dict[str, str], csrf: str, **typed: str) -> bytes:
    part = '--part\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    fields = {"csrfmiddlewaretoken": csrf, **typed}.items()
    body = "".join(part.format(*field) for field in fields).encode() + b"--part--\r\n"
    kind = {
        "Content-Type": "multipart/form-data; boundary=part",
        "Content-Length": str(len(body)),
    }
    return request("POST", path, member.host, {**headers, **kind}) + body


async def _again(
    member: Greedy, name: str, requests: list[bytes], counts: Counter[str], local: str = ""
) -> None:
    """Ask in turn, each time a while after the answer, until this is cancelled."""
    caller = Caller(*member.place, local=local)
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


async def _stream(member: Greedy, data: bytes, counts: Counter[str]) -> None:
    """Follow a stream, and begin another when it ends, until this is cancelled."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(*member.place)
            try:
                writer.write(data)
                counts[f"stream {(await reader.readline())[9:12].decode()}"] += 1
                while await reader.read(4096):
                    pass
            finally:
                writer.close()
        await asyncio.sleep(AGAIN_S)
