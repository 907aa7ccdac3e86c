"""Requests of agents: bounds and checks before parsing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import parse_qs
from uuid import UUID

from django.conf import settings
from django.http.request import split_domain_port, validate_host

from clusters.agent_errors import AgentCallError, bad_token, invalid
from controlplane.web.http.asgi import Receive, Scope
from loadmaster.protocol import PROTOCOL_HEADER, PROTOCOL_VERSION, ErrorCode
from loadmaster.wire import WireError, loads

T = TypeVar("T")
Headers = Mapping[bytes, bytes]

VERSION_HEADER = PROTOCOL_HEADER.lower().encode()
VERSION = str(PROTOCOL_VERSION).encode()
INTEGER_DIGITS = 19
INTEGER_MAX = 2**63


class ClientDisconnectedError(Exception):
    """Connection closed by the client before its request was complete."""


@dataclass(frozen=True, slots=True)
class Request:
    """Checked request. `names` are the variable parts of the address."""

    headers: Headers
    names: Mapping[str, str]
    query: bytes
    body: bytes
    address: str

    @property
    def token(self) -> str:
        """Return the bearer token. Raises AgentCallError if there is none."""
        scheme, _, token = self.header("authorization").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise bad_token("write the token as a header: Authorization: Bearer <token>")
        return token.strip()

    def header(self, name: str) -> str:
        """Header by its name in lower case; empty if missing."""
        return self.headers.get(name.encode(), b"").decode("latin-1")

    def id(self, name: str) -> UUID:
        return UUID(self.names[name])

    def parse(self, cls: type[T]) -> T:
        """Parse the body as a dataclass of the protocol. Raises AgentCallError."""
        try:
            return loads(cls, self.body)
        except WireError as error:
            where = error.path or "body"
            raise AgentCallError(400, "invalid", str(error), field=where) from error

    def integer(self, name: str, default: int | None = None) -> int:
        text = self._query(name)
        if not text and default is not None:
            return default
        digits = text.isdecimal() and text.isascii() and len(text) <= INTEGER_DIGITS
        if not digits or int(text) >= INTEGER_MAX:
            raise invalid(name, "must be a whole number, 0 or more, in the address")
        return int(text)

    def number(self, name: str, default: float) -> float:
        text = self._query(name)
        digits = text.replace(".", "", 1)
        if text and not (digits.isdecimal() and text.isascii() and len(text) <= INTEGER_DIGITS):
            raise invalid(name, "must be a number, 0 or more")
        return float(text) if text else default

    def _query(self, name: str) -> str:
        return parse_qs(self.query.decode("latin-1")).get(name, [""])[-1]


def headers_of(scope: Scope) -> Headers:
    """Headers by name; repeated ones are joined, as in Django."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        found[name] = b"%b,%b" % (found[name], value) if name in found else value
    return found


def check_host(headers: Headers) -> None:
    domain, _ = split_domain_port(headers.get(b"host", b"").decode("latin-1"))
    if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
        text = "this server does not serve that host name; an operator adds it to ALLOWED_HOSTS"
        raise AgentCallError(400, "host", text)


def check_transport(scope: Scope, headers: Headers) -> None:
    """Redirect a request without TLS, if TLS is on."""
    if not settings.SECURE_SSL_REDIRECT or _is_secure(scope, headers):
        return
    host, query = headers[b"host"].decode("latin-1"), scope["query_string"].decode("latin-1")
    path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
    address = f"https://{host}{path}{'?' if query else ''}{query}"
    raise AgentCallError(301, "tls", "use https", headers={"Location": address})


def _is_secure(scope: Scope, headers: Headers) -> bool:
    if not settings.SECURE_PROXY_SSL_HEADER:
        return bool(scope.get("scheme") == "https")
    name, value = settings.SECURE_PROXY_SSL_HEADER
    header = name.removeprefix("HTTP_").replace("_", "-").lower().encode()
    return headers.get(header) == value.encode()


def check_length(headers: Headers, limit: int) -> None:
    """Refuse a body of more than `limit` bytes or of unknown length, before it is read."""
    length = headers.get(b"content-length", b"")
    if not length and b"transfer-encoding" in headers:
        text = "the body does not say how long it is; send it whole, with Content-Length"
        raise AgentCallError(411, "length_required", text)
    if length and not length.isdigit():
        raise invalid("Content-Length", "must be a whole number")
    if len(length) > INTEGER_DIGITS or int(length or b"0") > limit:
        raise _too_large(f"the body has {length[:INTEGER_DIGITS].decode()} bytes; at most {limit}")


def check_version(headers: Headers) -> None:
    """Refuse another version of the protocol, naming both."""
    if (spoken := headers.get(VERSION_HEADER, b"")) == VERSION:
        return
    said = f"none (the header {PROTOCOL_HEADER} is missing)"
    if spoken:
        said = f"version {spoken[:20].decode('latin-1')}"
    text = f"this server speaks agent protocol version {PROTOCOL_VERSION}, the agent speaks {said}"
    detail = f"{text}; install a matching agent"
    raise AgentCallError(426, ErrorCode.PROTOCOL, detail, expected=VERSION.decode())


async def read_body(receive: Receive, limit: int) -> bytes:
    """Read the whole body. Raises ClientDisconnectedError, or AgentCallError if too large."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnectedError
        body += bytes(message.get("body", b""))
        if len(body) > limit:
            raise _too_large(f"the body has more than {limit} bytes; at most {limit}")
        if not message.get("more_body", False):
            return body


def _too_large(problem: str) -> AgentCallError:
    return AgentCallError(413, "too_large", f"{problem} are taken")
