"""Page of the audit, and its export as CSV: for operators all, for maintainers their teams'."""

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from io import StringIO
from typing import cast

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.shortcuts import render
from django.utils.http import urlencode
from django.views.decorators.http import require_GET

from controlplane.audit.models import Channel, Entry
from controlplane.web.operators import is_operator
from controlplane.web.pages.formats import plain
from jobs.models import TeamRole
from jobs.roles import teams_with

PAGE_SIZE = 50
MOST_LISTED = 10_000
"""Rows that the page counts; the export has all of them."""
CHUNK = 500
COLUMNS = (
    "at", "actor", "channel", "address", "action", "thing", "thing_id", "team", "old", "new",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AuditFilters:
    """Filters of the audit; dates are UTC, a wrong one is ignored."""

    who: str = ""
    action: str = ""
    thing: str = ""
    team: str = ""
    channel: str = ""
    since: str = ""
    until: str = ""

    @classmethod
    def of(cls, query: QueryDict) -> "AuditFilters":
        return cls(**{f.name: query.get(f.name, "").strip()[:200] for f in fields(cls)})

    @property
    def query(self) -> str:
        return urlencode({name: value for name, value in asdict(self).items() if value})

    def rows(self, entries: QuerySet[Entry]) -> QuerySet[Entry]:
        """Those of these rows that the filters let through."""
        same = {"actor": self.who, "team": self.team, "channel": self.channel}
        found = entries.filter(**{name: value for name, value in same.items() if value})
        if self.action:
            found = found.filter(Q(action=self.action) | Q(action__startswith=f"{self.action}."))
        if self.thing:
            found = found.filter(Q(thing=self.thing) | Q(thing_id=self.thing))
        if (since := _day(self.since)) is not None:
            found = found.filter(at__gte=since)
        if (until := _day(self.until)) is not None:
            found = found.filter(at__lt=until + timedelta(days=1))
        return found


def _day(text: str) -> datetime | None:
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    except ValueError:
        return None


def visible_entries(user: User) -> QuerySet[Entry]:
    """Rows that a person may read. Raises PermissionDenied for who maintains no team."""
    if is_operator(user):
        return Entry.objects.all()
    teams = list(teams_with(user, TeamRole.MAINTAINER).values_list("pk", flat=True))
    if not teams:
        raise PermissionDenied("the audit is for operators, and for maintainers of their teams")
    return Entry.objects.filter(team_id__in=teams)


@require_GET
def audit(request: HttpRequest) -> HttpResponse:
    """Page of the newest changes."""
    filters = AuditFilters.of(request.GET)
    rows = filters.rows(visible_entries(cast(User, request.user)))
    paginator = Paginator(rows, PAGE_SIZE)
    paginator.count = rows.order_by()[:MOST_LISTED].count()
    page = paginator.get_page(request.GET.get("page"))
    context = {"page": page, "filters": filters, "query": filters.query}
    return render(request, "operations/audit.html", {**context, "channels": Channel.choices})


@require_GET
def audit_csv(request: HttpRequest) -> StreamingHttpResponse:
    """All rows that the filters let through, oldest first, as they are read."""
    rows = AuditFilters.of(request.GET).rows(visible_entries(cast(User, request.user)))
    headers = {"Content-Disposition": 'attachment; filename="audit.csv"'}
    return StreamingHttpResponse(_lines(rows), content_type="text/csv", headers=headers)


def _lines(rows: QuerySet[Entry]) -> Iterator[str]:
    """Yield CSV in pieces, each read by a query of its own: nothing is held between them."""
    yield ",".join(COLUMNS) + "\r\n"
    last = 0
    while piece := list(rows.filter(pk__gt=last).order_by("pk")[:CHUNK]):
        file = StringIO()
        csv.writer(file).writerows(map(_cells, piece))
        yield file.getvalue()
        last = piece[-1].pk


def _cells(entry: Entry) -> list[str]:
    values = {name: getattr(entry, name) for name in COLUMNS}
    values |= {"at": entry.at.isoformat(), "old": _json(entry.old), "new": _json(entry.new)}
    return [str(plain(str(value))) for value in values.values()]


def _json(values: object) -> str:
    return json.dumps(values, ensure_ascii=False) if values else ""
