"""The long poll for directives, for a request that comes through Django; most take the short way of
`controlplane.execution.protocol.asgi`.
"""

from __future__ import annotations

from uuid import UUID

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_GET

from clusters.agents.authentication import bearer
from clusters.agents.errors import AgentCallError, invalid
from clusters.services.enrolment import sha256
from controlplane.execution.protocol.base import check_version
from controlplane.execution.protocol.polls import POLLS
from loadmaster.wire import to_json


@login_not_required
@require_GET
async def directives_view(request: HttpRequest, node_id: UUID) -> HttpResponse:
    """What became wanted of the node after `cursor`: at once, or as soon as there is something
    within `wait` seconds; else 204.
    """
    try:
        check_version(request)
        cursor, wait_s = _number(request, "cursor", 0.0), _number(request, "wait", 0.0)
        found = await POLLS.wait(node_id, sha256(bearer(request)), int(cursor), wait_s)
    except AgentCallError as refusal:
        return JsonResponse(refusal.body(), status=refusal.status, headers=refusal.headers())
    return JsonResponse(to_json(found)) if found.directives else HttpResponse(status=204)


def _number(request: HttpRequest, name: str, default: float) -> float:
    text = request.GET.get(name, "")
    if text and not (text.isascii() and text.replace(".", "", 1).isdecimal() and len(text) <= 20):
        raise invalid(name, "must be a number, 0 or more")
    return float(text) if text else default
