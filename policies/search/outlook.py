"""The data of a roll-out (`kernels.outlook`) from the problem of a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.andreas.kernels.arrays import NONE
from policies.andreas.objective import cheapest
from policies.andreas.problem import Problem
from policies.andreas.queues import SHORTEST_S, fastest_s
from policies.andreas.solution import Solution
from policies.contract.snapshot import Floats, Ints
from policies.contract.validation import TOLERANCE
from policies.search.kernels.outlook import Outlook


@dataclass(frozen=True, slots=True)
class Foresight:
    """How a schedule is judged. `hysteresis`: what moving or stopping a running job costs, as a
    fraction of its cheapest run; `haste`: what a second before the end costs a job without due date
    or weight, as a part of its energy cost per second; `risk`: by how much a wait may grow, as a
    fraction of it.
    """

    hysteresis: float
    haste: float
    risk: float


def outlook(problem: Problem, foresight: Foresight) -> tuple[Outlook, Ints]:
    """The kernel's data, and int64[N]: the problem's number of its nodes by class."""
    nodes = _by_class(problem)
    place = np.full(len(nodes), NONE, dtype=np.int64)
    place[nodes] = np.arange(len(nodes))
    running, classes = problem.home_config != NONE, problem.node_class[nodes]
    release_s = _release_s(problem, nodes)
    queue = [np.lexsort((release_s[:, g], classes)) for g in range(release_s.shape[1])]
    base, slope = _lines(problem)
    step_s, step_priced_s, step_rate = _prices(problem)
    data = Outlook(
        time_s=_time_s(problem), launch_s=problem.move_s,
        home=np.where(running, place[problem.home], NONE),
        home_config=problem.home_config,
        moving=np.where(running, foresight.hysteresis * cheapest(problem), 0.0),
        risk=foresight.risk, slack_s=problem.slack_s, weight=problem.column("tardiness_weight"),
        haste=_haste(problem, foresight),
        config_class=problem.config_class, config_gpus=problem.config_gpus,
        first=np.searchsorted(classes, np.arange(len(problem.cost) + 1)).astype(np.int64),
        release_s=release_s,
        opened_s=np.where(problem.busy[nodes] > 0, np.inf, 0.0),
        queue=np.stack(queue).astype(np.int64), closes=_closes(problem),
        base=base, slope=slope, rent=_worth(problem), demand=problem.demand,
        capacity=np.ascontiguousarray(problem.capacity[nodes]), power=problem.power,
        busy=problem.busy[nodes],
        watts=problem.watts, retry_s=max(1.0, problem.snapshot.round_s), step_s=step_s,
        step_priced_s=step_priced_s,
        step_rate=step_rate,
    )  # fmt: skip
    return data, nodes


def decided(nodes: Ints, node: Ints, config: Ints, start_s: Floats) -> Solution:
    """What of a schedule starts now, in the problem's numbers of nodes."""
    now = start_s == 0.0
    return Solution(
        np.where(now, nodes[np.where(now, node, 0)] if len(nodes) else NONE, NONE),
        np.where(now, config, NONE),
    )


def _time_s(problem: Problem) -> Floats:
    """float64[E, K]: run times without launch, inf where a job would never start.

    That is where no node has so many GPUs to give, or a node with them takes more power than the
    cluster may use: no end of another job leaves as much.
    """
    most = np.zeros(len(problem.cost), dtype=np.int64)
    gpus = np.array([len(d) for d in problem.devices], dtype=np.int64)
    np.maximum.at(most, problem.node_class, gpus)
    cap_w = np.inf if problem.snapshot.cap_w is None else problem.snapshot.cap_w
    fits = problem.config_gpus <= most[problem.config_class]
    fits &= problem.power[problem.config_class, problem.config_gpus] <= cap_w + TOLERANCE
    return np.where(fits, np.maximum(problem.run_s, SHORTEST_S), np.inf)


def _haste(problem: Problem, foresight: Foresight) -> Floats:
    """float64[E]: cost of a second's delay of jobs without tardiness cost."""
    free = ~np.isfinite(problem.slack_s) | (problem.column("tardiness_weight") <= 0.0)
    return np.where(free, foresight.haste * cheapest(problem) / fastest_s(problem), 0.0)


def _by_class(problem: Problem) -> Ints:
    """Nodes by class, within it those that are nobody's home first, so that newcomers go there."""
    residents = np.zeros(len(problem.nodes), dtype=np.int64)
    np.add.at(residents, problem.home[problem.home_config != NONE], 1)
    return np.lexsort((residents, problem.node_class)).astype(np.int64)


def _release_s(problem: Problem, nodes: Ints) -> Floats:
    gpus = np.array([len(problem.devices[n]) for n in nodes], dtype=np.int64)
    return np.where(np.arange(problem.cost.shape[1] - 1)[None, :] < gpus[:, None], 0.0, np.inf)


def _closes(problem: Problem) -> Ints:
    """int64[K]: 1 if the configuration fills its node and nothing else runs there."""
    gpus = np.array([len(d) for d in problem.devices], dtype=np.int64)
    most = np.zeros(len(problem.cost), dtype=np.int64)
    np.maximum.at(
        most, problem.node_class, np.where(problem.busy > 0, np.iinfo(np.int64).max, gpus)
    )
    return (problem.config_gpus >= most[problem.config_class]).astype(np.int64)


def _lines(problem: Problem) -> tuple[Floats, Floats]:
    """float64[C] each: cost per second of a node, and of each GPU, by P(1) and P(G)."""
    most = np.array(
        [
            max(1, int(problem.config_gpus[problem.config_class == c].max(initial=1)))
            for c in range(len(problem.cost))
        ]
    )
    one = problem.cost[:, min(1, problem.cost.shape[1] - 1)]
    full = problem.cost[np.arange(len(problem.cost)), np.minimum(most, problem.cost.shape[1] - 1)]
    slope = np.where(most > 1, (full - one) / np.maximum(most - 1, 1), 0.0)
    return np.maximum(one - slope, 0.0), np.maximum(slope, 0.0)


def _prices(problem: Problem) -> tuple[Floats, Floats, Floats]:
    """float64[S] each: start of each price, priced seconds until then, and per second."""
    prices = problem.prices
    if prices.is_flat:
        return np.zeros(1), np.zeros(1), np.ones(1)
    return prices.starts_s, prices.priced_s(prices.starts_s), prices.rates / prices.reference


def _worth(problem: Problem) -> Floats:
    """float64[C]: mean speed per GPU of a class relative to the fastest."""
    slowness = problem.run_s * problem.config_gpus[None, :]
    speed = np.zeros((len(problem.rows), len(problem.cost)))
    for k, c in enumerate(problem.config_class):
        speed[:, c] = np.maximum(speed[:, c], 1.0 / np.maximum(slowness[:, k], SHORTEST_S))
    best = speed.max(axis=1, initial=0.0, keepdims=True)
    shares: Floats = np.divide(speed, best, out=np.zeros_like(speed), where=best > 0.0).mean(axis=0)
    return shares
