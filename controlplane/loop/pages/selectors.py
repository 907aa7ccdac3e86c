"""Rows of the pages of rounds, in a constant number of queries."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator

from clusters.models import Device, Node
from clusters.tariffs import price_per_kwh
from controlplane.loop.models import Round
from controlplane.web.pages.formats import part_of
from jobs.selectors import OTHERS, uuids, visible_jobs

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class RoundRow:
    """Row of the list: number of each change, and seconds of the whole round."""

    round: Round
    counts: tuple[tuple[str, int], ...]
    took_s: float | None


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """Change or refused placement in words; `job_id` only where the reader may see the job."""

    change: str
    job_id: str | None
    name: str
    where: str
    before: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RoundPage:
    """Page of a round; `price_per_kwh` at its start, None without a tariff."""

    row: RoundRow
    changes: tuple[ChangeRow, ...]
    rejected: tuple[ChangeRow, ...]
    waiting: int
    price_per_kwh: float | None


def rounds_page(number: int | str | None) -> tuple[Page[Round], list[RoundRow]]:
    """Rounds, latest first, without their snapshots and plans."""
    rounds = Round.objects.select_related("cluster").order_by("-id")
    rounds = rounds.defer("snapshot", "plan", "runs_expected")
    page = Paginator(rounds, PAGE_SIZE).get_page(number)
    return page, [_row(r) for r in page.object_list]


def round_page(user: User, pk: int) -> RoundPage | None:
    rounds = Round.objects.select_related("cluster", "tariff", "pue")
    found = rounds.defer("snapshot", "runs_expected").filter(pk=pk).first()
    if found is None:
        return None
    changes, rejected = _dicts(found.changes), _dicts(found.rejected)
    jobs, places = _job_names(user, [*changes, *rejected]), _place_names(changes)
    waiting = found.plan.get("waiting", ()) if isinstance(found.plan, dict) else ()
    done, refused = (
        tuple(_change_row(entry, jobs, places) for entry in entries)
        for entries in (changes, rejected)
    )
    zone, at = found.timezone or found.cluster.timezone, found.started_at
    price = None if found.tariff is None else price_per_kwh(found.tariff, at, zone)
    return RoundPage(_row(found), done, refused, len(waiting), price)


def snapshot_file(pk: int) -> tuple[str, dict[str, Any]] | None:
    """Name and content of a round's snapshot file; None without round or snapshot."""
    rounds = Round.objects.select_related("cluster").only("number", "snapshot", "cluster__name")
    found = rounds.filter(pk=pk).first()
    if found is None or found.snapshot is None:
        return None
    return f"{found.cluster.name}-round-{found.number}-snapshot.json", found.snapshot


def _row(of: Round) -> RoundRow:
    counts = Counter(str(c.get("change", "")) for c in _dicts(of.changes))
    known = [s for s in (of.snapshot_s, of.solve_s, of.apply_s) if s is not None]
    return RoundRow(of, tuple(sorted(counts.items())), sum(known) if known else None)


def _dicts(values: object) -> list[dict[str, Any]]:
    return [v for v in values if isinstance(v, dict)] if isinstance(values, list) else []


def _job_names(user: User, entries: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    ids = uuids(e.get("job") for e in entries)
    jobs = visible_jobs(user).filter(pk__in=ids)
    return {str(pk): name for pk, name in jobs.values_list("pk", "name")}


def _place_names(changes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Names of nodes by id, and numbers of GPUs on their nodes by uuid."""
    seats = [s for c in changes for side in ("from", "to") for s in _dicts(c.get(side))]
    nodes = uuids(s.get("node") for s in seats)
    rows = Node.objects.filter(pk__in=nodes).values_list("pk", "name")
    names = {str(pk): name for pk, name in rows}
    per_node: Counter[Any] = Counter()
    devices = Device.objects.filter(node__in=nodes).order_by("node", "uuid")
    for node_id, device in devices.values_list("node_id", "uuid"):
        names[f"{node_id}/{device}"] = str(per_node[node_id])
        per_node[node_id] += 1
    return names


def _change_row(
    entry: Mapping[str, Any], jobs: Mapping[str, str], places: Mapping[str, str]
) -> ChangeRow:
    job = str(entry.get("job", ""))
    mark = " (measuring)" if entry.get("purpose") == "profiling" else ""
    return ChangeRow(
        change=str(entry.get("change") or entry.get("code") or ""),
        job_id=job if job in jobs else None,
        name=jobs.get(job, OTHERS) + mark,
        where=_seats(entry.get("to"), places),
        before=_seats(entry.get("from"), places),
        detail=str(entry.get("detail", "")),
    )


def _seats(seats: object, places: Mapping[str, str]) -> str:
    words = []
    for seat in _dicts(seats):
        node = str(seat.get("node", ""))
        gpus = [places.get(f"{node}/{d}", str(d)) for d in seat.get("devices", ())]
        words.append(
            f"{places.get(node, node)} ({part_of(seat.get('share'))}GPU {', '.join(gpus)})"
        )
    return ", ".join(words)
