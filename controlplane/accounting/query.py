"""Queries of costs: cluster, time and grouping."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from clusters.models import Cluster

PERIODS = {
    "today": "Today",
    "24h": "Last 24 hours",
    "7d": "Last 7 days",
    "30d": "Last 30 days",
    "month": "This month",
    "last-month": "Last month",
}
BY = {"hour": "Hour", "day": "Day", "node": "Node", "team": "Team", "job": "Job"}


ASKED = ("cluster", "period", "from", "to", "by")


def asked_of(given: Mapping[str, str]) -> dict[str, str]:
    """Fields of a query from an address."""
    return {name: given.get(name, "").strip() for name in ASKED}


class CostQueryError(ValueError):
    """Invalid cost query; `field` names the place, the message the remedy."""

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
    """(since, until) of a named period: the last ones end now, others follow the calendar."""
    zone = ZoneInfo(cluster.timezone)
    today = now.astimezone(zone).date()
    first = today.replace(day=1)
    match name:
        case "today":
            return _midnight(today, zone), now
        case "24h" | "7d" | "30d":
            return now - timedelta(days={"24h": 1, "7d": 7, "30d": 30}[name]), now
        case "month":
            return _midnight(first, zone), now
        case "last-month":
            before = (first - timedelta(days=1)).replace(day=1)
            return _midnight(before, zone), _midnight(first, zone)
    raise CostQueryError("period", f"must be one of {', '.join(PERIODS)}, not {name[:40]!r}")


def read_query(cluster: Cluster, asked: dict[str, str], now: datetime) -> CostQuery:
    """Parse `by`, and `period` or `from`/`to` (days, the last included, or ISO 8601)."""
    by = asked.get("by") or "team"
    if by not in BY:
        raise CostQueryError("by", f"must be one of {', '.join(BY)}, not {by[:40]!r}")
    if not asked.get("from") and not asked.get("to"):
        since, until = period(asked.get("period") or "7d", cluster, now)
        return CostQuery(cluster, since, until, by)
    zone = ZoneInfo(cluster.timezone)
    if not asked.get("from"):
        raise CostQueryError("from", "is missing; give the first day, such as 2026-05-01")
    since = _moment("from", asked["from"], zone, last=False)
    until = _moment("to", asked["to"], zone, last=True) if asked.get("to") else now
    if until <= since:
        raise CostQueryError("to", "must be after from")
    return CostQuery(cluster, since, until, by)


def _moment(field: str, text: str, zone: ZoneInfo, *, last: bool) -> datetime:
    try:
        if len(text) == len("2026-05-01"):
            return _midnight(date.fromisoformat(text) + timedelta(days=int(last)), zone)
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise CostQueryError(
            field,
            "must be a day such as 2026-05-01 or a time such as 2026-05-01T18:00, not"
            f" {text[:40]!r}",
        ) from None


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time(0), zone).astimezone(UTC)
