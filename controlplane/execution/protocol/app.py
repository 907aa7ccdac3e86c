"""Agent protocol as an ASGI application: routing, guards, answers and refusals."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from django.conf import settings

from clusters.agent_errors import AgentCallError, unknown_token
from clusters.services.enrolment import sha256
from controlplane.execution.protocol.answers import (
    Answer,
    Exchange,
    database_refusal,
    refusal_of,
)
from controlplane.execution.protocol.calls import ENDPOINTS, PREFIX, Batchers, Endpoint
from controlplane.execution.protocol.heartbeat_batch import (
    MOST,
    PAUSE_S,
    WAITING,
    GroupCommit,
    HeartbeatBatch,
)
from controlplane.execution.protocol.long_poll import LongPolls
from controlplane.execution.protocol.requests import (
    ClientDisconnectedError,
    Headers,
    Request,
    check_host,
    check_length,
    check_transport,
    check_version,
    headers_of,
    read_body,
)
from controlplane.execution.protocol.threads import Pools
from controlplane.execution.services.sessions import known_tokens
from controlplane.web.http.asgi import App, Receive, Scope, Send
from controlplane.web.logs.middleware import IDS, UNMATCHED
from loadmaster.protocol import TIME_HEADER
from loadmaster.wire import dumps

PATTERNS = [(endpoint.pattern, endpoint) for endpoint in ENDPOINTS]


class AgentProtocol:
    """Application for agents; every other request goes on to the next application."""

    def __init__(self, app: App, pools: Pools | None = None) -> None:
        self._app = app
        self._pools = pools or Pools()
        self._known = set[str]()
        self._tokens = GroupCommit(self._are_known, pause_s=PAUSE_S, most=MOST, waiting=WAITING)
        self._waiting = Batchers(HeartbeatBatch(self._pools), LongPolls(self._pools))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        headers = headers_of(scope)
        endpoint, names = find(scope["path"])
        ids = {IDS[name]: text for name, text in names.items() if name in IDS}
        route = endpoint.path if endpoint else UNMATCHED
        exchange = Exchange.begin(scope["method"], route, ids, headers)
        try:
            endpoint = check(scope, headers, endpoint)
            address = (scope.get("client") or ("",))[0]
            request = Request(headers, names, scope["query_string"], b"", address)
            if not endpoint.enrols:
                await self._check_token(request)
            if endpoint.takes:
                request = replace(request, body=await read_body(receive, endpoint.most_bytes))
            answer = await self._answer(endpoint, request, exchange)
        except ClientDisconnectedError:
            return
        except Exception as error:  # an agent always hears in one form what came of its call
            with exchange.bound():
                answer = Answer.of_refusal(refusal_of(error))
        await exchange.send(send, answer)

    async def _check_token(self, request: Request) -> None:
        """Refuse a token that is no node's before its body is read, which costs memory and time.

        One that was a node's is not asked for again: each call looks at it once more.
        """
        token = sha256(request.token)
        if token in self._known:
            return
        if not await self._tokens.ask(token):
            raise unknown_token()
        self._known.add(token)

    async def _are_known(self, tokens: Sequence[str]) -> list[bool]:
        """Ask for many at once: all agents of a large cluster call after a restart.

        A failure is noted once, not by each who waits.
        """
        try:
            known = await self._pools.tokens.run(known_tokens, tokens)
        except Exception as error:
            refusal = database_refusal(error)
            if refusal is None:
                raise
            raise refusal from error
        return [token in known for token in tokens]

    async def _answer(self, endpoint: Endpoint, request: Request, exchange: Exchange) -> Answer:
        if endpoint.waits:
            reply = await endpoint.act(request, self._waiting)
        else:
            reply = await self._pools.calls.run(exchange.act, endpoint.act, request)
        if reply is None:
            return Answer(204)
        dated = {TIME_HEADER: f"{time.time():.6f}"} if endpoint.dated else {}
        return Answer(endpoint.status, dumps(reply), dated)


def find(path: str) -> tuple[Endpoint | None, Mapping[str, str]]:
    """Endpoint at that path, with the variable parts of the path."""
    for pattern, endpoint in PATTERNS:
        if found := pattern.fullmatch(path):
            return endpoint, found.groupdict()
    return None, {}


def check(scope: Scope, headers: Headers, endpoint: Endpoint | None) -> Endpoint:
    """Check the head of the request and return its endpoint. Raises AgentCallError."""
    check_host(headers)
    check_transport(scope, headers)
    most = endpoint.most_bytes if endpoint else settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    check_length(headers, most)
    if endpoint is None:
        raise AgentCallError(404, "not_found", f"there is nothing at {scope['path']}")
    if scope["method"] != endpoint.method:
        allow = {"Allow": endpoint.method}
        text = f"use the method {endpoint.method} here"
        raise AgentCallError(405, "method_not_allowed", text, headers=allow)
    check_version(headers)
    return endpoint
