"""Prices on the page of a round whose policy decides by prices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User

from clusters.models import Node
from controlplane.web.storage.bulk import batches
from jobs.selectors import uuids, visible_jobs
from policies.contract.gpu_prices import gpu_prices_in

NODES_SHOWN = 6
"""Most nodes with the same price that are named."""

OUTBID_SHOWN = 100
"""Most jobs that are listed as outbid."""

BATCH = 500


@dataclass(frozen=True, slots=True)
class PriceRow:
    """Price of the next GPU of nodes that are alike; `more`: how many of them are not named."""

    gpu_type: str
    nodes: tuple[str, ...]
    more: int
    free: int
    gpus: int
    price: float


@dataclass(frozen=True, slots=True)
class OutbidRow:
    """Job that lacks `missing` of the price of its GPUs."""

    job_id: str
    name: str
    price: float
    worth: float
    missing: float


@dataclass(frozen=True, slots=True)
class RoundPrices:
    """Prices after a round, and the jobs that did not pay them, the nearest first.

    `more_outbid`: jobs that are not listed, some of them of teams that the reader may not see.
    """

    rows: tuple[PriceRow, ...]
    outbid: tuple[OutbidRow, ...]
    more_outbid: int


def round_prices(user: User, plan: object) -> RoundPrices | None:
    """Return the prices in a round's stored plan; None unless its policy left any."""
    if not isinstance(plan, Mapping):
        return None
    rows = _price_rows(plan.get("memory"))
    if not rows:
        return None
    outbid, more_outbid = _outbid_rows(user, plan.get("waiting"))
    return RoundPrices(tuple(rows), tuple(outbid), more_outbid)


def _price_rows(memory: object) -> list[PriceRow]:
    """Return the rows of prices, by GPU type and price, with the names of nodes."""
    prices = sorted(gpu_prices_in(memory), key=lambda price: (price.gpu_type, price.price))
    named = [node for price in prices for node in price.nodes[:NODES_SHOWN]]
    names = _names_of_nodes(named)
    rows = []
    for price in prices:
        shown = tuple([names.get(node, node) for node in price.nodes[:NODES_SHOWN]])
        more = len(price.nodes) - len(shown)
        rows.append(PriceRow(price.gpu_type, shown, more, price.free, price.gpus, price.price))
    return rows


def _names_of_nodes(nodes: Sequence[str]) -> dict[str, str]:
    """Return the names of nodes by id; those of removed nodes are unknown."""
    names: dict[str, str] = {}
    for ids in batches(sorted(uuids(nodes)), BATCH):
        found = Node.objects.filter(pk__in=ids).values_list("pk", "name")
        names.update({str(pk): name for pk, name in found})
    return names


def _outbid_rows(user: User, waiting: object) -> tuple[list[OutbidRow], int]:
    """Return the rows of outbid jobs that the user may see, and the number of other outbid jobs."""
    # 1. Outbid jobs, those that lack least first.
    outbid = [entry for entry in _entries(waiting) if _missing(entry) > 0.0]
    outbid.sort(key=_missing)

    # 2. The names of those that the user may see.
    names: dict[str, str] = {}
    for ids in batches(sorted(uuids(entry.get("job") for entry in outbid)), BATCH):
        found = visible_jobs(user).filter(pk__in=ids).values_list("pk", "name")
        names.update({str(pk): name for pk, name in found})

    # 3. Their rows.
    rows: list[OutbidRow] = []
    for entry in outbid:
        job = str(entry.get("job"))
        if job in names and len(rows) < OUTBID_SHOWN:
            rows.append(OutbidRow(job, names[job], entry["price"], entry["worth"], _missing(entry)))
    return rows, len(outbid) - len(rows)


def _entries(waiting: object) -> list[Mapping[str, Any]]:
    """Return the entries of a stored list of waiting jobs; [] for anything else."""
    if not isinstance(waiting, list):
        return []
    return [entry for entry in waiting if isinstance(entry, Mapping)]


def _missing(entry: Mapping[str, Any]) -> float:
    """Return how much a waiting job lacks of the price of its GPUs; 0 without a price."""
    price = entry.get("price")
    worth = entry.get("worth")
    if not isinstance(price, (int, float)) or not isinstance(worth, (int, float)):
        return 0.0
    return price - worth
