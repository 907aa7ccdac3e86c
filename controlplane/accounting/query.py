"""Queries of costs: cluster, time and grouping."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from clusters.models import Cluster

PERIODS = {  # name in an address: words of the page
    "today": "Today",
    "24h": "Last 24 hours",
    "7d": "Last 7 days",
    "30d": "Last 30 days",
    "month": "This month",
    "last-month": "Last month",
}
BY = {"hour": "Hour", "day": "Day", "node": "Node", "team": "Team", "job": "Job"}
"""Groupings of costs, with the words of the page."""

FIELDS = ("cluster", "period", "from", "to", "by")
"""Fields of a query in an address."""


def fields_of(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a query from the parameters of an address; "" for missing ones."""
    return {name: parameters.get(name, "").strip() for name in FIELDS}


class CostQueryError(ValueError):
    """Invalid cost query, with the wrong `field`; the message names the remedy."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class CostQuery:
    """Cost query: cluster, [since, until), grouping. Days and hours are in the cluster's zone."""

    cluster: Cluster
    since: datetime
    until: datetime
    by: str = "team"

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.cluster.timezone)


def period(name: str, cluster: Cluster, now: datetime) -> tuple[datetime, datetime]:
    """Return (since, until) of a named period.

    "Last ..." ends now, except for the last month. Raises CostQueryError for an unknown name.
    """
    zone = ZoneInfo(cluster.timezone)
    today = now.astimezone(zone).date()
    first_of_month = today.replace(day=1)
    match name:
        case "today":
            return _midnight(today, zone), now
        case "24h":
            return now - timedelta(days=1), now
        case "7d":
            return now - timedelta(days=7), now
        case "30d":
            return now - timedelta(days=30), now
        case "month":
            return _midnight(first_of_month, zone), now
        case "last-month":
            first_of_last_month = (first_of_month - timedelta(days=1)).replace(day=1)
            return _midnight(first_of_last_month, zone), _midnight(first_of_month, zone)
    raise CostQueryError("period", f"must be one of {', '.join(PERIODS)}, not {name[:40]!r}")


def read_query(cluster: Cluster, fields: Mapping[str, str], now: datetime) -> CostQuery:
    """Parse the fields `by`, and `period` or `from` and `to`. Raises CostQueryError.

    `from` and `to` are days, of which the last is included, or times in ISO 8601.
    """
    by = fields.get("by") or "team"
    if by not in BY:
        raise CostQueryError("by", f"must be one of {', '.join(BY)}, not {by[:40]!r}")

    # 1. A named period, unless days or times are given.
    from_text = fields.get("from")
    to_text = fields.get("to")
    if not from_text and not to_text:
        since, until = period(fields.get("period") or "7d", cluster, now)
        return CostQuery(cluster, since, until, by)

    # 2. From a day or time on, to another or to now.
    zone = ZoneInfo(cluster.timezone)
    if not from_text:
        raise CostQueryError("from", "is missing; give the first day, such as 2026-05-01")
    since = _moment("from", from_text, zone, is_last=False)
    until = now
    if to_text:
        until = _moment("to", to_text, zone, is_last=True)
    if until <= since:
        raise CostQueryError("to", "must be after from")
    return CostQuery(cluster, since, until, by)


def _moment(field: str, text: str, zone: ZoneInfo, *, is_last: bool) -> datetime:
    """Return in UTC a time of the zone or, for a day, its begin; its end if it `is_last`.

    Raises CostQueryError.
    """
    try:
        if len(text) == len("2026-05-01"):
            day = date.fromisoformat(text)
            if is_last:
                day += timedelta(days=1)
            return _midnight(day, zone)
        moment = datetime.fromisoformat(text)
        if not moment.tzinfo:
            moment = moment.replace(tzinfo=zone)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise CostQueryError(
            field,
            "must be a day such as 2026-05-01 or a time such as 2026-05-01T18:00, not"
            f" {text[:40]!r}",
        ) from None


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    """Return the begin of a day in the zone, in UTC."""
    return datetime.combine(day, time(0), zone).astimezone(UTC)
