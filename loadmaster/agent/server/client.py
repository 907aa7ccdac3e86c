"""The agent's side of the protocol over HTTP: a call is made once; TryAgain may be repeated."""

import gzip
import hashlib
import math
from typing import Any, TypeVar

import httpx

from loadmaster import protocol, samples
from loadmaster.wire import WireError, dumps, loads

T = TypeVar("T")

TIMEOUT_S = 10.0
LONG_POLL_MARGIN_S = 10.0
LONGEST_OUTPUT_CALL_S = 5.0
OUTPUT_CALLS_A_LEASE = 8
"""A call that brings output takes no more than this part of a lease, as leases wait for it."""


class AgentError(Exception):
    """A call did not do what it was for."""


class TryAgain(AgentError):  # noqa: N818 - it is a request, not a fault
    """Network failure, 429, 5xx or an unreadable answer: the call may succeed later."""


class Refused(AgentError):  # noqa: N818 - the server's word
    """The server refused the call: `code` is an ErrorCode, `expected` what it would take."""

    def __init__(self, status: int, code: str, detail: str, expected: object = None) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail
        self.expected = expected


class Conflict(Refused):
    """409: the call is stale (session, fence, offset)."""


class Unauthorized(Refused):
    """401 or 403: the token is unknown, used up, expired or revoked. Enrol the node anew."""


class WrongProtocol(Refused):
    """426: another protocol version. Install the agent of the server's version."""


class Duplicate(Refused):
    """409: another agent works with a copy of this one's state folder."""


INCURABLE = (Unauthorized, WrongProtocol, Duplicate)
"""Refusals that no repetition cures: the agent ends with a word on the remedy."""

_BY_STATUS: dict[int, type[Refused]] = {
    401: Unauthorized,
    403: Unauthorized,
    409: Conflict,
    426: WrongProtocol,
}


class AgentClient:
    """Connection to one server; `verify` False takes any certificate, a path names authorities."""

    def __init__(
        self,
        server: str,
        *,
        transport: httpx.BaseTransport | None = None,
        verify: bool | str = True,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.node = ""
        self.server_time_s: float | None = None
        """The server's clock in the last answer; None if it does not tell."""
        self._output_timeout_s = LONGEST_OUTPUT_CALL_S
        self._token = ""
        self._http = httpx.Client(
            base_url=f"{server.rstrip('/')}/api/agent/v1/",
            headers={protocol.PROTOCOL_HEADER: str(protocol.PROTOCOL_VERSION)},
            timeout=timeout_s,
            transport=transport,
            verify=_verification(verify),
        )

    def identify(self, node: str, token: str) -> None:
        """Speak as this node from now on."""
        self.node = node
        self._token = token

    def close(self) -> None:
        self._http.close()

    def register(
        self, enrolment_token: str, registration: protocol.Registration
    ) -> protocol.Registered:
        """Enrol the machine; the answer holds the node's token, shown once."""
        kind = protocol.Registered
        return self._json(kind, "POST", "register", registration, token=enrolment_token)

    def open_session(self, request: protocol.SessionRequest) -> protocol.Session:
        """Begin a new epoch; Conflict while another machine holds the node's session."""
        path = f"nodes/{self.node}/session"
        session = self._json(protocol.Session, "POST", path, request)
        part_s = session.intervals.lease_s / OUTPUT_CALLS_A_LEASE
        self._output_timeout_s = min(LONGEST_OUTPUT_CALL_S, part_s)
        return session

    def heartbeat(self, beat: protocol.Heartbeat) -> protocol.HeartbeatReply:
        """Renew leases and learn what is wanted; Conflict when the epoch is stale."""
        return self._json(protocol.HeartbeatReply, "POST", f"nodes/{self.node}/heartbeat", beat)

    def directives(self, cursor: int, wait_s: float) -> protocol.Directives | None:
        """Wait for something to become wanted; None if nothing did."""
        params: dict[str, str | int | float] = {"cursor": cursor, "wait": round(wait_s)}
        path, timeout_s = f"nodes/{self.node}/directives", wait_s + LONG_POLL_MARGIN_S
        answer = self._send("GET", path, params=params, timeout=timeout_s)
        return None if answer.status_code == 204 else _decoded(protocol.Directives, answer)

    def accept(self, assignment: str, request: protocol.Accept) -> protocol.LaunchSpec:
        """Take an offer; Conflict when it is stale."""
        return self._json(protocol.LaunchSpec, "PUT", f"assignments/{assignment}/accept", request)

    def report_state(self, assignment: str, report: protocol.StateReport) -> protocol.StateAccepted:
        """Say what became of an assignment; Conflict when it is no longer this agent's."""
        return self._json(protocol.StateAccepted, "PUT", f"assignments/{assignment}/state", report)

    def send_log(
        self,
        assignment: str,
        stream: str,
        offset: int,
        content: bytes,
        *,
        fence: int,
        epoch: int,
        skipped: bool = False,
    ) -> int:
        """Send a piece of a log; return the next offset. Conflict.expected names the right one.

        `skipped`: bytes before the piece are left out.
        """
        answer = self._send(
            "PUT",
            f"assignments/{assignment}/logs/{stream}",
            params={"offset": offset, "fence": fence, "epoch": epoch, "skipped": int(skipped)},
            content=gzip.compress(content, compresslevel=5),
            headers={
                "Content-Encoding": "gzip",
                "X-Content-SHA256": hashlib.sha256(content).hexdigest(),
            },
            timeout=self._output_timeout_s,
        )
        return _decoded(protocol.LogAccepted, answer).next_offset

    def send_metrics(self, assignment: str, batch: samples.MetricsBatch) -> None:
        """Ship samples; a replay does no harm."""
        path, timeout_s = f"assignments/{assignment}/metrics", self._output_timeout_s
        self._send("POST", path, timeout=timeout_s, **_body(batch))

    def _json(
        self, kind: type[T], method: str, path: str, payload: object, token: str | None = None
    ) -> T:
        answer = self._send(method, path, token=token, **_body(payload))
        self.server_time_s = _time_of(answer)
        return _decoded(kind, answer)

    def _send(
        self, method: str, path: str, *, token: str | None = None, **more: Any
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._token if token is None else token}"} | more.pop(
            "headers", {}
        )
        try:
            answer = self._http.request(method, path, headers=headers, **more)
        except httpx.HTTPError as error:
            raise TryAgain(f"{method} {path}: {error or type(error).__name__}") from error
        _check(answer)
        return answer


def _body(payload: object) -> dict[str, Any]:
    return {"content": dumps(payload), "headers": {"Content-Type": "application/json"}}


def _check(answer: httpx.Response) -> None:
    status = answer.status_code
    if status == 429 or status >= 500:
        raise TryAgain(f"{_call_of(answer)}: the server answered {status}")
    if answer.is_success:
        return
    code, detail, expected = _refusal(answer)
    kind = _BY_STATUS.get(status, Refused)
    if kind is Conflict and code == protocol.ErrorCode.DUPLICATE:
        kind = Duplicate
    raise kind(status, code, detail, expected)


def _refusal(answer: httpx.Response) -> tuple[str, str, object]:
    """Code, detail and expected of a refusal, whatever it looks like."""
    try:
        error = answer.json()["error"]
        return str(error.get("code", "")), str(error.get("detail", "")), error.get("expected")
    except (ValueError, KeyError, TypeError, AttributeError):
        codes, is_token = protocol.ErrorCode, answer.status_code in (401, 403)
        code = codes.TOKEN if is_token else codes.STALE_ASSIGNMENT
        return code.value, answer.text[:200], None


def _time_of(answer: httpx.Response) -> float | None:
    try:
        told_s = float(answer.headers.get(protocol.TIME_HEADER, "nan"))
    except ValueError:
        return None
    return told_s if math.isfinite(told_s) else None


def _decoded(cls: type[T], answer: httpx.Response) -> T:
    try:
        return loads(cls, answer.content)
    except WireError as error:
        raise TryAgain(f"{_call_of(answer)}: the answer cannot be read: {error}") from error


def _call_of(answer: httpx.Response) -> str:
    return f"{answer.request.method} {answer.request.url.path}"


def _verification(verify: bool | str) -> Any:
    if isinstance(verify, str):
        import ssl

        return ssl.create_default_context(cafile=verify)
    return verify
