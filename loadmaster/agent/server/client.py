"""The agent's side of the protocol over HTTP. Each call is made once; callers repeat it."""

import gzip
import hashlib
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import httpx

from loadmaster import protocol, samples
from loadmaster.wire import WireError, dumps, loads

T = TypeVar("T")

TIMEOUT_S = 10.0
LONG_POLL_MARGIN_S = 10.0
"""Seconds that an answer may take longer than the wait that the agent asks for."""

LONGEST_OUTPUT_CALL_S = 5.0
OUTPUT_CALLS_A_LEASE = 8
"""Limits of a call that sends output: seconds, and such calls that fit in the time of a lease.

Renewals of leases wait for the call.
"""


class AgentError(Exception):
    """A call failed."""


class TryAgain(AgentError):  # noqa: N818 - it is a request, not a fault
    """Network failure, 429, 5xx or an unreadable answer: the call may succeed later."""


class Refused(AgentError):  # noqa: N818 - the server's word
    """The server refused the call: `code` is an ErrorCode, `expected` the value it would accept."""

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
"""Refusals after which no call can succeed: the agent ends, and names the remedy."""

NO_HEADERS: Mapping[str, str] = {}

_BY_STATUS: dict[int, type[Refused]] = {
    401: Unauthorized,
    403: Unauthorized,
    409: Conflict,
    426: WrongProtocol,
}


class AgentClient:
    """Connection to one server. `verify`: False for any certificate, or a file of authorities."""

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
        """Time in the last answer by the server's clock; None if it had none."""
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
        """Make all further calls as this node."""
        self.node = node
        self._token = token

    def close(self) -> None:
        self._http.close()

    def register(
        self, enrolment_token: str, registration: protocol.Registration
    ) -> protocol.Registered:
        """Enrol the machine; the answer holds the node's token, shown once."""
        form = protocol.Registered
        return self._json(form, "POST", "register", registration, token=enrolment_token)

    def open_session(self, request: protocol.SessionRequest) -> protocol.Session:
        """Begin a new epoch. Raises Conflict while another machine holds the node's session."""
        path = f"nodes/{self.node}/session"
        session = self._json(protocol.Session, "POST", path, request)
        part_s = session.intervals.lease_s / OUTPUT_CALLS_A_LEASE
        self._output_timeout_s = min(LONGEST_OUTPUT_CALL_S, part_s)
        return session

    def heartbeat(self, beat: protocol.Heartbeat) -> protocol.HeartbeatReply:
        """Renew leases and receive directives. Raises Conflict if the epoch is stale."""
        return self._json(protocol.HeartbeatReply, "POST", f"nodes/{self.node}/heartbeat", beat)

    def directives(self, cursor: int, wait_s: float) -> protocol.Directives | None:
        """Wait at most so long for directives after the cursor; return None if none came."""
        answer = self._send(
            "GET",
            f"nodes/{self.node}/directives",
            params={"cursor": cursor, "wait": round(wait_s)},
            timeout=wait_s + LONG_POLL_MARGIN_S,
        )
        if answer.status_code == 204:
            return None
        return _decoded(protocol.Directives, answer)

    def accept(self, assignment: str, request: protocol.Accept) -> protocol.LaunchSpec:
        """Accept an offer. Raises Conflict if it is stale."""
        return self._json(protocol.LaunchSpec, "PUT", f"assignments/{assignment}/accept", request)

    def report_state(self, assignment: str, report: protocol.StateReport) -> protocol.StateAccepted:
        """Report a new state of an assignment. Raises Conflict if it is not this agent's now."""
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
        """Send a piece of a log from an offset; return the next offset.

        `skipped`: bytes before the piece are left out. Raises Conflict for a wrong offset, with
        the right one as `expected`.
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
        """Send samples; the server ignores a batch that it already has."""
        path = f"assignments/{assignment}/metrics"
        self._send("POST", path, timeout=self._output_timeout_s, **_body(batch))

    def _json(
        self, form: type[T], method: str, path: str, payload: object, token: str | None = None
    ) -> T:
        """Send a payload as JSON, and return the answer in this form."""
        answer = self._send(method, path, token=token, **_body(payload))
        self.server_time_s = _time_of(answer)
        return _decoded(form, answer)

    def _send(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        **options: Any,
    ) -> httpx.Response:
        """Make a call with the node's token or another one. Raises AgentError.

        `options`: those of httpx.
        """
        bearer = self._token if token is None else token
        all_headers = {"Authorization": f"Bearer {bearer}", **headers}
        try:
            answer = self._http.request(method, path, headers=all_headers, **options)
        except httpx.HTTPError as error:
            raise TryAgain(f"{method} {path}: {error or type(error).__name__}") from error
        _check(answer)
        return answer


def _body(payload: object) -> dict[str, Any]:
    """Return the arguments of a call that sends a payload as JSON."""
    return {"content": dumps(payload), "headers": {"Content-Type": "application/json"}}


def _check(answer: httpx.Response) -> None:
    """Raise TryAgain or a kind of Refused for an answer that is not a success."""
    status = answer.status_code
    if status == 429 or status >= 500:
        raise TryAgain(f"{_call_of(answer)}: the server answered {status}")
    if answer.is_success:
        return
    code, detail, expected = _refusal(answer)
    refusal = _BY_STATUS.get(status, Refused)
    if refusal is Conflict and code == protocol.ErrorCode.DUPLICATE:
        refusal = Duplicate
    raise refusal(status, code, detail, expected)


def _refusal(answer: httpx.Response) -> tuple[str, str, object]:
    """Return code, detail and expected of a refusal, also of one that a proxy wrote."""
    try:
        error = answer.json()["error"]
        return str(error.get("code", "")), str(error.get("detail", "")), error.get("expected")
    except (ValueError, KeyError, TypeError, AttributeError):
        code = protocol.ErrorCode.STALE_ASSIGNMENT
        if answer.status_code in (401, 403):
            code = protocol.ErrorCode.TOKEN
        return code.value, answer.text[:200], None


def _time_of(answer: httpx.Response) -> float | None:
    """Return the server's time in an answer; None if it has none that is a number."""
    try:
        time_s = float(answer.headers.get(protocol.TIME_HEADER, "nan"))
    except ValueError:
        return None
    return time_s if math.isfinite(time_s) else None


def _decoded(form: type[T], answer: httpx.Response) -> T:
    """Return the content of an answer in this form. Raises TryAgain if it cannot be read."""
    try:
        return loads(form, answer.content)
    except WireError as error:
        raise TryAgain(f"{_call_of(answer)}: the answer cannot be read: {error}") from error


def _call_of(answer: httpx.Response) -> str:
    return f"{answer.request.method} {answer.request.url.path}"


def _verification(verify: bool | str) -> Any:
    """Return the setting `verify` as httpx takes it: a file of authorities as a context of TLS."""
    if isinstance(verify, str):
        import ssl

        return ssl.create_default_context(cafile=verify)
    return verify
