"""Clients of API and pages: offered rates, latencies from when a request was due."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from experiments.load.agents import percentiles_ms
from experiments.load.connection import Connection

ANSWER_S = 60.0


@dataclass(slots=True)
class Answers:
    """Answers: seconds from due to answered, counts by status, acknowledged bodies."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    bodies: list[bytes] = field(default_factory=list)
    began_s: float = 0.0
    ended_s: float = 0.0

    def summary(self) -> dict[str, object]:
        """Rate until the last answer, percentiles in milliseconds, answers by status."""
        took_s = max(self.ended_s - self.began_s, 1e-9)
        return {
            "rate_per_s": round(len(self.seconds) / took_s, 1),
            **percentiles_ms(self.seconds),
            "answers": dict(self.statuses),
        }


def request(
    method: str, path: str, host: str, headers: Mapping[str, str], body: bytes = b""
) -> bytes:
    """The bytes of a request."""
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def json_request(
    path: str, host: str, token: str, data: object, headers: Mapping[str, str] | None = None
) -> bytes:
    """The bytes of a POST of JSON by a user's token."""
    bearer = {"Authorization": f"Bearer {token}", **(headers or {})}
    return request("POST", path, host, bearer, json.dumps(data, separators=(",", ":")).encode())


class Caller:
    """One keep-alive connection, from a local address, opened again after the server closed it."""

    def __init__(self, host: str, port: int, local: str = "") -> None:
        self._place, self._local = (host, port), (local, 0) if local else None
        self._connection: Connection | None = None

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        """The answer's status and body. Raises OSError or TimeoutError."""
        if self._connection is None or not self._connection.open:
            loop = asyncio.get_running_loop()
            _, self._connection = await loop.create_connection(
                Connection, *self._place, local_addr=self._local
            )
        try:
            return await asyncio.wait_for(self._connection.ask(data), ANSWER_S)
        except TimeoutError:
            self.close()  # its late answer would be taken for the next one's
            self._connection = None
            raise

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()


async def offer(
    make: Callable[[int], bytes],
    place: tuple[str, int],
    *,
    rate_per_s: float,
    seconds: float,
    connections: int,
    keep: bool = False,
) -> Answers:
    """Send `make(0)`, `make(1)` ... at the offered rate over so many connections, each of which
    sends its next one when it is free.

    A latency counts from when the request was due, so what the server cannot keep up with shows.
    With `keep` the bodies of 2xx answers are kept. It ends when everything due within `seconds` is
    answered, or four times that long after its beginning.
    """
    answers = Answers(began_s=time.monotonic())
    total, last_s = int(rate_per_s * seconds), answers.began_s + 4 * seconds
    numbers = iter(range(total))

    async def call() -> None:
        caller = Caller(*place)
        for number in numbers:
            due_s = answers.began_s + number / rate_per_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            if time.monotonic() > last_s:
                answers.statuses["never sent"] += 1
                continue
            await _timed(caller, make(number), due_s, answers, keep)
        caller.close()

    await asyncio.gather(*(call() for _ in range(connections)))
    return answers


async def in_turn(requests: Sequence[bytes], place: tuple[str, int]) -> Answers:
    """Send them one after another over one connection; latencies count from sending."""
    answers, caller = Answers(began_s=time.monotonic()), Caller(*place)
    for data in requests:
        await _timed(caller, data, time.monotonic(), answers, keep=False)
    caller.close()
    return answers


async def _timed(caller: Caller, data: bytes, due_s: float, answers: Answers, keep: bool) -> None:
    try:
        status, body = await caller.ask(data)
    except (OSError, TimeoutError) as error:
        answers.statuses[type(error).__name__] += 1
        return
    answers.ended_s = time.monotonic()
    answers.seconds.append(answers.ended_s - due_s)
    answers.statuses[str(status)] += 1
    if keep and 200 <= status < 300:
        answers.bodies.append(body)
