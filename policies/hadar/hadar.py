"""Hadar: gangs over mixed GPU types by prices (Sultana et al., 2024, Algorithm 2).

In each round every job is worth something as a function of its end (`utilities`), every GPU has a
price that rises as its node fills (`prices`), and the jobs and places of greatest worth minus cost
are chosen (`offers`, `selection`) and given nodes (`allocation`). See docs/policies.md.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from policies.contract.gpu_prices import KEY, GpuPrice, gpu_prices_form
from policies.contract.plan import Plan, WaitCode, Waiting, training_run
from policies.contract.policy import parameter
from policies.contract.snapshot import Ints, Snapshot
from policies.hadar.allocation import Allocator
from policies.hadar.kernels import NOTHING
from policies.hadar.offers import Offers, free_gpus, offers_of, open_nodes
from policies.hadar.prices import TypePrices
from policies.hadar.selection import Selection, select
from policies.hadar.utilities import NAMES
from policies.placement.plan_builder import PlanBuilder

VERSION = 1
"""Of the prices in the plan's memory."""

FOR_ROOM = (WaitCode.NO_CAPACITY, WaitCode.POSTPONED)
"""Codes of jobs that wait for GPUs that others have, or that nobody has."""


@dataclass(frozen=True, slots=True)
class Hadar:
    """Jobs and GPU types by prices: who is worth more than the GPUs cost runs (Hadar).

    Gangs may be over nodes, and over GPU types if the job may mix them. A running job stays unless
    another one pays for the work that its restart would waste. The plan's objective is the payoff
    of the choice, worth minus cost of its GPUs; its memory has the prices after the round.
    """

    utility: str = field(
        default="critical_path",
        metadata={
            "description": (
                "worth of a job by its end: shortest_first for the mean completion time,"
                " effective_throughput as in the paper, critical_path also for the end of the last"
            ),
            "enum": NAMES,
        },
    )
    eta: float = parameter(
        1.0,
        meaning="divides the price of a GPU of an empty node; more: prices begin lower",
        minimum=1e-3,
        maximum=1e6,
    )
    keep: float = parameter(
        0.6,
        meaning=(
            "while GPUs are short a running job moves, or makes way, only for so much more worth,"
            " as a fraction; 0: for any gain that pays for its restart"
        ),
        minimum=0.0,
        maximum=100.0,
    )
    exact_up_to: int = parameter(
        20_000,
        meaning=(
            "exact choice while the products of (free GPUs of a type + 1) are at most this, else"
            " greedy; 0: always greedy"
        ),
        minimum=0,
        maximum=1_000_000,
    )
    fill: bool = parameter(
        True,
        meaning="idle GPUs go to jobs that are worth less than the price, until others pay it",
    )

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the plan. Raises SolverFailedError where a utility gives no number."""
        # 1. What each job could have, and what that is worth.
        plan = PlanBuilder(snapshot, never_touch=False, keep_wide=False)
        offers = offers_of(plan, self.utility, self.eta, self.keep)
        market, place_of = offers.market(free_gpus(plan))

        # 2. The jobs that get GPUs, and how many of each type; then nodes for them.
        selection = select(market, self.exact_up_to)
        allocator = Allocator(plan, offers, fills=self.fill)
        allocator.place_selected(_chosen(selection, place_of))

        # 3. GPUs that would idle are chosen for once more, as if they cost nothing; then whoever
        #    still fits where it could be.
        if self.fill:
            idle, place_of = offers.market(free_gpus(plan), allocator.placed, priced=False)
            allocator.place_selected(_chosen(select(idle, self.exact_up_to), place_of))
        allocator.place_others()

        # 4. Reasons of those that wait, with the price that they lack.
        made = plan.build("hadar", selection.payoff, self._message(selection))
        left = free_gpus(plan)
        prices = {
            name: TypePrices.of(offers.ranges[name], left.get(name, ())) for name in offers.types
        }
        waiting = _with_prices(snapshot, made, offers, prices)
        now = {name: of_type.cost(0, 1) for name, of_type in prices.items()}
        memory = {
            "hadar": {"version": VERSION, "prices": now},
            KEY: gpu_prices_form(_prices_of_nodes(plan, offers)),
        }
        return replace(made, waiting=waiting, memory=memory)

    def _message(self, selection: Selection) -> str:
        return f"{selection.form}; utility {self.utility}"


def _chosen(selection: Selection, place_of: Ints) -> list[tuple[int, int]]:
    """Return (job, place) of each job that was chosen."""
    chosen = []
    for job, offer in enumerate(selection.choice.tolist()):
        if offer != NOTHING:
            chosen.append((job, int(place_of[offer])))
    return chosen


def _prices_of_nodes(plan: PlanBuilder, offers: Offers) -> list[GpuPrice]:
    """Return the price of the next GPU of each open node; nodes that are alike together."""
    alike: dict[tuple[str, int, int], list[str]] = {}
    for node in open_nodes(plan):
        alike.setdefault((node.gpu_type, node.gpus, node.free), []).append(node.id)
    prices = []
    for (gpu_type, gpus, free), nodes in sorted(alike.items()):
        price = offers.ranges[gpu_type].at(gpus - free, gpus)
        prices.append(GpuPrice(gpu_type, gpus, free, price, tuple(nodes)))
    return prices


class _Asking:
    """Prices after a round, by vector of GPUs of each type."""

    def __init__(self, offers: Offers, prices: dict[str, TypePrices]) -> None:
        self.offers = offers
        self.prices = prices
        self._of_split: dict[tuple[int, ...], float] = {}

    def of(self, split: tuple[int, ...]) -> float:
        """Return the price of the cheapest GPUs that are left; beyond them that of full nodes."""
        if split not in self._of_split:
            price = 0.0
            for name, gpus in zip(self.offers.types, split, strict=True):
                price += self.prices[name].cost(0, gpus)
            self._of_split[split] = price
        return self._of_split[split]

    def nearest(self, job: int) -> tuple[float, float]:
        """Return price and worth of the place of a job where it lacks least."""
        least = (np.inf, 0.0)
        for number in self.offers.of(job):
            worth = float(self.offers.worth[number])
            for split in self.offers.places[number].splits:
                price = self.of(split)
                if price - worth < least[0] - least[1]:
                    least = (price, worth)
        return least


def _with_prices(
    snapshot: Snapshot, plan: Plan, offers: Offers, prices: dict[str, TypePrices]
) -> tuple[Waiting, ...]:
    """Return the reasons for waiting, with price and worth for jobs that others have outbid.

    One for which GPUs are free, but too dear, has a code of its own.
    """
    number = {row: job for job, row in enumerate(offers.rows)}
    asking = _Asking(offers, prices)
    reasons = []
    for entry in plan.waiting:
        row = snapshot.jobs.position[entry.job]
        runs = training_run(snapshot.jobs.columns.others["running"][row]) is not None
        reason = entry
        if row in number and entry.code in FOR_ROOM and not runs:
            price, worth = asking.nearest(number[row])
            if price > worth:
                is_held = entry.code is WaitCode.NO_CAPACITY
                code = entry.code if is_held else WaitCode.OUTBID
                reason = entry.priced(code, price, worth)
        reasons.append(reason)
    return tuple(reasons)
