"""Page of the audit, and its export as CSV.

Operators see the changes by everybody, maintainers those in their teams.
"""

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
"""Most rows that the page counts and shows; the export has all of them."""
CHUNK = 500
"""Most rows that one query of the export reads."""

COLUMNS = (
    "at",
    "actor",
    "channel",
    "address",
    "action",
    "thing",
    "thing_id",
    "team",
    "old",
    "new",
)


@dataclass(frozen=True, slots=True)
class AuditFilters:
    """Filters of the audit as a person typed them; an empty one lets everything through.

    `since` and `until`: days in UTC, both included; a text that is no date is ignored.
    """

    who: str = ""
    action: str = ""
    thing: str = ""
    team: str = ""
    channel: str = ""
    since: str = ""
    until: str = ""

    @classmethod
    def of(cls, query: QueryDict) -> "AuditFilters":
        """Return the filters that the query of an address names."""
        names = [each.name for each in fields(cls)]
        return cls(**{name: query.get(name, "").strip()[:200] for name in names})

    @property
    def query(self) -> str:
        """The filters as the query of an address."""
        return urlencode({name: value for name, value in asdict(self).items() if value})

    def matching(self, entries: QuerySet[Entry]) -> QuerySet[Entry]:
        """Return the entries that all filters let through."""
        for field, value in (("actor", self.who), ("team", self.team), ("channel", self.channel)):
            if value:
                entries = entries.filter(**{field: value})
        if self.action:  # "job" stands for all actions on jobs, such as "job.cancel"
            is_action = Q(action=self.action) | Q(action__startswith=f"{self.action}.")
            entries = entries.filter(is_action)
        if self.thing:
            entries = entries.filter(Q(thing=self.thing) | Q(thing_id=self.thing))
        since = _day(self.since)
        if since is not None:
            entries = entries.filter(at__gte=since)
        until = _day(self.until)
        if until is not None:
            entries = entries.filter(at__lt=until + timedelta(days=1))
        return entries


def _day(text: str) -> datetime | None:
    """Return the beginning of a day in UTC; None for a text that is no date."""
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    except ValueError:
        return None


def visible_entries(user: User) -> QuerySet[Entry]:
    """Return the entries that a person may read.

    Raises PermissionDenied for people who are no operators and maintain no team.
    """
    if is_operator(user):
        return Entry.objects.all()
    teams = list(teams_with(user, TeamRole.MAINTAINER).values_list("pk", flat=True))
    if not teams:
        raise PermissionDenied("the audit is for operators, and for maintainers of their teams")
    return Entry.objects.filter(team_id__in=teams)


@require_GET
def audit(request: HttpRequest) -> HttpResponse:
    """Show the newest changes."""
    filters = AuditFilters.of(request.GET)
    entries = filters.matching(visible_entries(cast(User, request.user)))

    # The paginator would count all rows, which is slow for millions of them.
    paginator = Paginator(entries, PAGE_SIZE)
    paginator.count = entries.order_by()[:MOST_LISTED].count()
    context = {
        "page": paginator.get_page(request.GET.get("page")),
        "filters": filters,
        "query": filters.query,
        "channels": Channel.choices,
    }
    return render(request, "operations/audit.html", context)


@require_GET
def audit_csv(request: HttpRequest) -> StreamingHttpResponse:
    """Send all changes that the filters let through, oldest first, while they are being read."""
    filters = AuditFilters.of(request.GET)
    entries = filters.matching(visible_entries(cast(User, request.user)))
    headers = {"Content-Disposition": 'attachment; filename="audit.csv"'}
    return StreamingHttpResponse(_csv_pieces(entries), content_type="text/csv", headers=headers)


def _csv_pieces(entries: QuerySet[Entry]) -> Iterator[str]:
    """Yield CSV in pieces.

    A query of its own reads each piece, so a slow download keeps no cursor or transaction open.
    """
    yield ",".join(COLUMNS) + "\r\n"
    last_key = 0
    while True:
        chunk = list(entries.filter(pk__gt=last_key).order_by("pk")[:CHUNK])
        if not chunk:
            return
        piece = StringIO()
        csv.writer(piece).writerows(_cells(entry) for entry in chunk)
        yield piece.getvalue()
        last_key = chunk[-1].pk


def _cells(entry: Entry) -> list[str]:
    """Return the cells of an entry in the order of COLUMNS, none of them a formula."""
    values = {name: getattr(entry, name) for name in COLUMNS}
    values["at"] = entry.at.isoformat()
    values["old"] = _json(entry.old)
    values["new"] = _json(entry.new)
    return [str(plain(str(value))) for value in values.values()]


def _json(values: object) -> str:
    """Return old or new values as JSON; an empty text if there are none."""
    return json.dumps(values, ensure_ascii=False) if values else ""
