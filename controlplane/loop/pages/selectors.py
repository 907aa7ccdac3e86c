"""Contents of the pages of rounds, in a constant number of queries."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.core.paginator import Page, Paginator

from clusters.models import Device, Node
from clusters.tariffs import price_per_kwh
from controlplane.loop.models import Round
from controlplane.loop.pages.round_prices import RoundPrices, round_prices
from controlplane.web.pages.formats import part_of
from jobs.selectors import OTHERS, uuids, visible_jobs

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class RoundRow:
    """Row of the list of rounds.

    `counts`: number of changes of each sort, such as ("start", 3). `took_s`: seconds of the whole
    round; None if no step of it was timed.
    """

    round: Round
    counts: tuple[tuple[str, int], ...]
    took_s: float | None


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """Change or rejected placement in words; `job_id` only where the reader may see the job.

    `before` and `where`: nodes and GPUs that the job had, and that it got.
    """

    change: str
    job_id: str | None
    name: str
    where: str
    before: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RoundPage:
    """Page of a round.

    `waiting`: number of waiting jobs. `price_per_kwh`: of energy at the round's start, None without
    a tariff. `prices`: of GPUs, None unless the policy decides by prices.
    """

    row: RoundRow
    changes: tuple[ChangeRow, ...]
    rejected: tuple[ChangeRow, ...]
    waiting: int
    price_per_kwh: float | None
    prices: RoundPrices | None


def rounds_page(number: int | str | None) -> tuple[Page[Round], list[RoundRow]]:
    """Return a page of rounds, latest first, and its rows."""
    rounds = Round.objects.select_related("cluster").order_by("-id")

    # The list shows nothing of these columns, which may hold megabytes.
    rounds = rounds.defer("snapshot", "plan", "runs_expected")
    page = Paginator(rounds, PAGE_SIZE).get_page(number)
    return page, [_row(round_) for round_ in page.object_list]


def round_page(user: User, pk: int) -> RoundPage | None:
    """Return the page of a round; None if there is none."""
    rounds = Round.objects.select_related("cluster", "tariff", "pue")
    round_ = rounds.defer("snapshot", "runs_expected").filter(pk=pk).first()
    if round_ is None:
        return None

    # 1. Its changes and rejected placements, with the names of jobs, nodes and GPUs.
    changes = _dicts(round_.changes)
    rejected = _dicts(round_.rejected)
    job_names = _job_names(user, [*changes, *rejected])
    place_names = _place_names(changes)
    change_rows = [_change_row(entry, job_names, place_names) for entry in changes]
    rejected_rows = [_change_row(entry, job_names, place_names) for entry in rejected]

    # 2. Jobs that wait.
    waiting = ()
    if isinstance(round_.plan, dict):
        waiting = round_.plan.get("waiting", ())

    # 3. The price of energy.
    price = None
    if round_.tariff is not None:
        zone = round_.timezone or round_.cluster.timezone
        price = price_per_kwh(round_.tariff, round_.started_at, zone)
    return RoundPage(
        row=_row(round_),
        changes=tuple(change_rows),
        rejected=tuple(rejected_rows),
        waiting=len(waiting),
        price_per_kwh=price,
        prices=round_prices(user, round_.plan),
    )


def snapshot_file(pk: int) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the content of a round's snapshot file.

    Return None if there is no such round, or its snapshot is not stored.
    """
    rounds = Round.objects.select_related("cluster").only("number", "snapshot", "cluster__name")
    round_ = rounds.filter(pk=pk).first()
    if round_ is None or round_.snapshot is None:
        return None
    return f"{round_.cluster.name}-round-{round_.number}-snapshot.json", round_.snapshot


def _row(round_: Round) -> RoundRow:
    """Return the row of a round. A round that failed took the time of the steps before."""
    counts = Counter(str(change.get("change", "")) for change in _dicts(round_.changes))
    steps_s = (round_.snapshot_s, round_.solve_s, round_.apply_s)
    known_s = [seconds for seconds in steps_s if seconds is not None]
    took_s = sum(known_s) if known_s else None
    return RoundRow(round_, tuple(sorted(counts.items())), took_s)


def _dicts(values: object) -> list[dict[str, Any]]:
    """Return the objects of a stored list; [] for anything else."""
    if not isinstance(values, list):
        return []
    return [value for value in values if isinstance(value, dict)]


def _job_names(user: User, entries: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the names of the jobs that the user may see, by id."""
    ids = uuids(entry.get("job") for entry in entries)
    jobs = visible_jobs(user).filter(pk__in=ids)
    return {str(pk): name for pk, name in jobs.values_list("pk", "name")}


def _place_names(changes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the names of nodes by id, and the number of each GPU on its node by node/uuid."""
    # 1. Nodes that the changes name.
    seats = []
    for change in changes:
        seats.extend(_dicts(change.get("from")))
        seats.extend(_dicts(change.get("to")))
    node_ids = uuids(seat.get("node") for seat in seats)
    nodes = Node.objects.filter(pk__in=node_ids).values_list("pk", "name")
    names = {str(pk): name for pk, name in nodes}

    # 2. All their GPUs, counted from 0 on each node.
    gpus_of_node: Counter[Any] = Counter()
    devices = Device.objects.filter(node__in=node_ids).order_by("node", "uuid")
    for node_id, uuid in devices.values_list("node_id", "uuid"):
        names[f"{node_id}/{uuid}"] = str(gpus_of_node[node_id])
        gpus_of_node[node_id] += 1
    return names


def _change_row(
    entry: Mapping[str, Any], job_names: Mapping[str, str], place_names: Mapping[str, str]
) -> ChangeRow:
    """Return the row of a stored change or rejected placement."""
    job = str(entry.get("job", ""))
    suffix = " (measuring)" if entry.get("purpose") == "profiling" else ""
    return ChangeRow(
        change=str(entry.get("change") or entry.get("code") or ""),
        job_id=job if job in job_names else None,
        name=job_names.get(job, OTHERS) + suffix,
        where=_in_words(entry.get("to"), place_names),
        before=_in_words(entry.get("from"), place_names),
        detail=str(entry.get("detail", "")),
    )


def _in_words(seats: object, place_names: Mapping[str, str]) -> str:
    """Return stored seats as text, such as "a1 (half of GPU 0, 1), b2 (GPU 3)"."""
    places = []
    for seat in _dicts(seats):
        node = str(seat.get("node", ""))
        devices = seat.get("devices", ())
        gpus = [place_names.get(f"{node}/{uuid}", str(uuid)) for uuid in devices]
        part = part_of(seat.get("share"))
        places.append(f"{place_names.get(node, node)} ({part}GPU {', '.join(gpus)})")
    return ", ".join(places)
