"""The long poll for directives: a hint that saves latency. It holds a connection, never a worker thread while it waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_GET

from clusters.agent_errors import AgentCallError, invalid
from clusters.api_base import check_node, check_version
from clusters.authentication import node_of
from clusters.models import Node
from clusters.selectors import cursor_of, directives, wanted_after
from loadmaster.protocol import Directives
from loadmaster.wire import to_json

LONGEST_WAIT_S = 25.0
LOOK_EVERY_S = 0.25
LOOKS_PER_S = 100.0
"""Looks a second that all polls of this process may take together; beyond it each looks less often."""

WORKERS = 4
POOL = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="directives")
"""The few threads, each with its database connection, that look for all waiting polls."""

T = TypeVar("T")
_waiting: set[object] = set()


@login_not_required
@require_GET
async def directives_view(request: HttpRequest, node_id: UUID) -> HttpResponse:
    """What became wanted of the node after `cursor`: at once, or as soon as there is something within `wait` seconds; else 204."""
    try:
        check_version(request)
        cursor, wait_s = _number(request, "cursor", 0.0), _number(request, "wait", 0.0)
        node = await _look(lambda: node_of(request))
        check_node(node, node_id)
        found = await _wait_for(node, int(cursor), min(wait_s, LONGEST_WAIT_S))
    except AgentCallError as refusal:
        return JsonResponse(refusal.body(), status=refusal.status)
    return JsonResponse(to_json(found)) if found.directives else HttpResponse(status=204)


async def _wait_for(node: Node, cursor: int, wait_s: float) -> Directives:
    ends = time.monotonic() + wait_s
    token = object()
    _waiting.add(token)
    try:
        while True:
            found = await _look(lambda: newer_directives(node, cursor))
            left = ends - time.monotonic()
            if found.directives or left <= 0:
                return found
            await asyncio.sleep(min(left, max(LOOK_EVERY_S, len(_waiting) / LOOKS_PER_S)))
    finally:
        _waiting.discard(token)


def newer_directives(node: Node, cursor: int) -> Directives:
    """The wishes for the node that are newer than the cursor, and the cursor after them."""
    wanted = wanted_after(node, cursor)
    return Directives(directives(wanted, node.cluster.grace_s), max(cursor, cursor_of(wanted)))


async def _look(read: Callable[[], T]) -> T:
    return await sync_to_async(_read, thread_sensitive=False, executor=POOL)(read)


def _read(read: Callable[[], T]) -> T:
    """Read with a connection that is fresh before and given back after, as Django does for a request of its own."""
    close_old_connections()
    try:
        return read()
    finally:
        close_old_connections()


def _number(request: HttpRequest, name: str, default: float) -> float:
    text = request.GET.get(name, "")
    if text and not (text.isascii() and text.replace(".", "", 1).isdecimal() and len(text) <= 20):
        raise invalid(name, "must be a number, 0 or more")
    return float(text) if text else default
