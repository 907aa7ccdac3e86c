"""Live pages: server-sent events name changed topics, and pages reload their parts.

A row that commits after a later one is missed, so pages also refresh now and then. Topics: `jobs`,
`job:<id>`, `nodes`, `rounds`, of visible jobs only.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import ParamSpec, TypeAlias, TypeVar

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.handlers.asgi import ASGIRequest
from django.db import connection
from django.db.models import Max, Model
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_GET

from clusters.models import NodeEvent
from controlplane.loop.models import Round
from controlplane.web.operators import is_operator
from jobs.models import AssignmentEvent, JobEvent, LogChunk, ProgressPoint

P = ParamSpec("P")
T = TypeVar("T")
TURN_S = 1.0
QUIET_TURNS = 15
STREAM_TURNS = 300
RETRY_MS = 3_000
MOST_ROWS = 500


OF_JOBS: Mapping[type[Model], str] = {
    JobEvent: "job",
    AssignmentEvent: "assignment__job",
    ProgressPoint: "assignment__job",
    LogChunk: "assignment__job",
}
"""Followed rows of jobs, with the path to the job."""

Cursors: TypeAlias = Mapping[type[Model], int]
"""Newest row already sent of each followed model."""


def newest() -> Cursors:
    followed: list[type[Model]] = [*OF_JOBS, Round, NodeEvent]
    return {model: _newest(model) for model in followed}


def changes_since(user_id: int, cursors: Cursors) -> tuple[frozenset[str], Cursors] | None:
    """(topics changed since, new cursors); None once the reader may no longer log in."""
    user = User.objects.filter(pk=user_id, is_active=True).first()
    if user is None:
        return None
    after: dict[type[Model], int] = {}
    jobs: dict[type[Model], set[str]] = {}
    for model, path in OF_JOBS.items():
        after[model], jobs[model] = _job_rows(user, model, cursors[model], path)
    after |= {model: _newest(model) for model in (Round, NodeEvent)}
    moved = {model for model, cursor in after.items() if cursor > cursors[model]}
    listed = jobs[JobEvent] | jobs[AssignmentEvent] | jobs[ProgressPoint]
    topics = {f"job:{pk}" for pk in listed | jobs[LogChunk]}
    topics |= {"jobs"} if listed else set()
    topics |= {"nodes"} if moved & {AssignmentEvent, NodeEvent} else set()
    topics |= {"rounds"} if Round in moved else set()
    return frozenset(topics), after


def _newest(model: type[Model]) -> int:
    return model._default_manager.aggregate(newest=Max("pk"))["newest"] or 0


def _job_rows(user: User, model: type[Model], cursor: int, path: str) -> tuple[int, set[str]]:
    """(newest id, visible jobs) of rows after the cursor; a large burst takes several turns."""
    rows = model._default_manager.filter(pk__gt=cursor).order_by("pk")
    after = list(rows.values_list("pk", f"{path}_id", f"{path}__team_id")[:MOST_ROWS])
    if not after:
        return cursor, set()
    teams = set() if is_operator(user) else set(user.teams.values_list("pk", flat=True))
    return after[-1][0], {str(job) for _, job, team in after if is_operator(user) or team in teams}


def _read(act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Read without holding a database connection afterwards, while the stream waits."""
    try:
        return act(*args, **kwargs)
    finally:
        if not connection.in_atomic_block:
            connection.close()


async def stream(
    user_id: int, *, turn_s: float = TURN_S, turns: int = STREAM_TURNS
) -> AsyncIterator[str]:
    """Events of one stream, which ends after some minutes; the browser then reconnects."""
    cursors = await sync_to_async(_read)(newest)
    yield f"retry: {RETRY_MS}\n: welcome\n\n"
    quiet = 0
    for _ in range(turns):
        await asyncio.sleep(turn_s)
        found = await sync_to_async(_read)(changes_since, user_id, cursors)
        if found is None:
            return
        topics, cursors = found
        quiet = 0 if topics else quiet + 1
        if topics:
            yield f"data: {json.dumps(sorted(topics))}\n\n"
        elif quiet % QUIET_TURNS == 0:
            # A comment now and then tells proxies, and us, that the other side is still there.
            yield ": still here\n\n"


@require_GET
def live(request: HttpRequest) -> HttpResponseBase:
    """Event stream. Under WSGI the answer is 204, so that the browser does not retry."""
    pk = request.user.pk
    if not isinstance(request, ASGIRequest) or pk is None:
        return HttpResponse(status=204)
    answer = StreamingHttpResponse(stream(pk), content_type="text/event-stream")
    answer["Cache-Control"] = "no-cache"
    answer["X-Accel-Buffering"] = "no"
    return answer
