"""Data of rollouts of a round's problem, orders to try, and prices of occupied GPUs (rents)."""

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import NONE
from policies.cost_model.problem import Problem
from policies.placement.from_snapshot import remaining_s
from policies.search.kernels.rollout import RolloutData

LOOK_AHEAD = (8.0, 2.0, 0.5)
"""k of the ATC orders to start from."""

RENTS = (0.0, 0.25, 1.0)
"""Rents to start from, as fractions of the cost of a second's delay of all jobs per GPU."""

SHORTEST_S, UNPLACEABLE_S = 1e-6, 1e12


def rollout_data(
    problem: Problem,
    *,
    hysteresis: float = 0.0,
    move_cost: float = 0.0,
    haste: float = 0.0,
    risk: float = 0.0,
) -> tuple[RolloutData, Ints]:
    """Return the kernel's data, and int64[N]: the problem's number of its nodes by class.

    `hysteresis`, `move_cost`, `haste`, `risk`: see `policies.search.cost_search`.
    """
    nodes = _by_class(problem)
    place = np.empty(len(nodes), dtype=np.int64)
    place[nodes] = np.arange(len(nodes))
    running, classes, most = problem.running, problem.node_class[nodes], problem.power.shape[1] - 1
    release_s, opened_s = (of[nodes] for of in _releases(problem, most))
    queue = [np.lexsort((release_s[:, g], classes)) for g in range(most)]
    base, slope = _linear_costs(problem)
    step_s, step_priced_s, step_rate = _prices(problem)
    waiting = problem.column("waiting_cost")
    undue = ~np.isfinite(problem.slack_s) | (problem.column("tardiness_weight") <= 0.0)
    parts = hysteresis + move_cost * _whole(problem)
    unhurried = undue & (waiting <= 0.0)
    data = RolloutData(
        time_s=_time_s(problem, classes, np.isfinite(release_s).sum(axis=1)),
        launch_s=problem.move_s,
        current_node=np.where(running, place[problem.current_node], NONE),
        current_config=problem.current_config,
        moving=np.where(running, parts * problem.cheapest, 0.0),
        risk=risk, slack_s=problem.slack_s, weight=problem.column("tardiness_weight"),
        haste=np.where(unhurried, haste * problem.cheapest / fastest_s(problem), 0.0),
        waiting=waiting,
        config_class=problem.config_class, config_gpus=problem.config_gpus,
        first=np.searchsorted(classes, np.arange(len(problem.cost) + 1)).astype(np.int64),
        release_s=release_s, opened_s=opened_s,
        queue=np.stack(queue).astype(np.int64), closes=_closes(problem),
        base=base, slope=slope, rent=_relative_speed(problem), demand=problem.demand,
        capacity=np.ascontiguousarray(problem.capacity[nodes]), power=problem.power,
        busy=problem.busy[nodes], watts=problem.watts,
        retry_s=max(1.0, problem.snapshot.round_s),
        step_s=step_s, step_priced_s=step_priced_s, step_rate=step_rate,
    )  # fmt: skip
    return data, nodes


def _whole(problem: Problem) -> Floats:
    """float64[E]: steps of a job over those that are left, at least 1."""
    total, left = problem.column("total_steps"), problem.column("remaining_steps")
    parts: Floats = np.maximum(total, left) / np.maximum(left, 1.0)
    return parts


def _releases(problem: Problem, most: int) -> tuple[Floats, Floats]:
    """float64[N, G], float64[N]: when GPUs are free, rising, and until when nodes are open anyhow.

    GPUs of a running job about which nothing is decided are free when it ends.
    """
    snapshot, plan = problem.snapshot, problem.plan
    number = {n: i for i, n in enumerate(problem.numbers.tolist())}
    release_s = np.where(np.arange(most) < problem.gpus[:, None], 0.0, np.inf)
    ends_s: dict[int, list[float]] = {}
    for stay in plan.pinned:
        end_s = remaining_s(snapshot, plan.options.speeds, stay)
        for part in stay.allocation.parts:
            if part.node in number:
                gpus = part.devices.bit_count()
                ends_s.setdefault(number[part.node], []).extend([end_s] * gpus)
    opened_s = np.where(problem.busy > 0, np.inf, 0.0)
    for n, ends in ends_s.items():
        free = int(problem.gpus[n])
        release_s[n, free : free + len(ends)] = sorted(ends)
        opened_s[n] = max(ends) if len(ends) == problem.busy[n] else np.inf
    return release_s, opened_s


def orders(problem: Problem) -> Ints:
    """int64[S, E]: orders by ATC, weight over time, pressure, due date; equal jobs by arrival."""
    fastest = fastest_s(problem)
    scores = [_apparent_tardiness_cost(problem, k) for k in LOOK_AHEAD]
    scores += [_delay_cost(problem) / fastest, fastest - problem.slack_s, -problem.slack_s]
    arrival_s = problem.column("arrival_s")
    return np.stack([np.lexsort((arrival_s, -score)).astype(np.int64) for score in scores])


def rents(problem: Problem) -> Floats:
    """float64[R], rents to start from, per second of a GPU of the fastest class."""
    delay_cost = float(_delay_cost(problem).sum())
    return np.array(RENTS) * delay_cost / max(int(problem.gpus.sum()), 1)


def fastest_s(problem: Problem) -> Floats:
    """float64[E]: least run time with a launch, > 0; very long if it fits nowhere."""
    found = np.isfinite(problem.fastest_s)
    return np.where(found, np.maximum(problem.fastest_s, SHORTEST_S), UNPLACEABLE_S)


def _delay_cost(problem: Problem) -> Floats:
    """float64[E]: cost of a second's delay of each job, if it is late."""
    total: Floats = problem.column("tardiness_weight") + problem.column("waiting_cost")
    return total


def _apparent_tardiness_cost(problem: Problem, look_ahead: float) -> Floats:
    """float64[E]: w / t * exp(-max(0, d - T_c - t) / (k * mean t)), t least run time, k given.

    The cost of waiting counts whatever the slack.
    """
    fastest = fastest_s(problem)
    fits = fastest < UNPLACEABLE_S
    mean = float(fastest[fits].mean()) if fits.any() else 1.0
    slack = np.maximum(problem.slack_s - fastest, 0.0)
    priority = problem.column("tardiness_weight") / fastest
    score: Floats = priority * np.exp(-slack / (look_ahead * mean))
    return score + problem.column("waiting_cost") / fastest


def _by_class(problem: Problem) -> Ints:
    """int64[N]: nodes by class, those without running jobs first, for new ones."""
    residents = np.bincount(problem.current_node[problem.running], minlength=len(problem.nodes))
    return np.lexsort((residents, problem.node_class)).astype(np.int64)


def _time_s(problem: Problem, classes: Ints, gpus: Ints) -> Floats:
    """float64[E, K]: run times without launch, inf where no node of a class ever has the GPUs."""
    fits = problem.config_gpus <= _most_gpus(problem, classes, gpus)[problem.config_class]
    return np.where(fits, np.maximum(problem.allowed_s, SHORTEST_S), np.inf)


def _closes(problem: Problem) -> Ints:
    """int64[K]: 1 if the configuration fills its node and nothing else runs there."""
    gpus = np.where(problem.busy > 0, np.iinfo(np.int64).max, problem.gpus)
    most = _most_gpus(problem, problem.node_class, gpus)
    return (problem.config_gpus >= most[problem.config_class]).astype(np.int64)


def _most_gpus(problem: Problem, classes: Ints, gpus: Ints) -> Ints:
    """int64[C]: greatest of `gpus` int64[N] in each class, `classes` int64[N]."""
    most = np.zeros(len(problem.cost), dtype=np.int64)
    np.maximum.at(most, classes, gpus)
    return most


def _linear_costs(problem: Problem) -> tuple[Floats, Floats]:
    """float64[C] each: cost per second of a node, and of each GPU, by P(1) and P(G)."""
    most = np.ones(len(problem.cost), dtype=np.int64)
    np.maximum.at(most, problem.config_class, problem.config_gpus)
    one, full = problem.cost[:, 1], problem.cost[np.arange(len(most)), most]
    slope = np.where(most > 1, (full - one) / np.maximum(most - 1, 1), 0.0)
    return np.maximum(one - slope, 0.0), np.maximum(slope, 0.0)


def _prices(problem: Problem) -> tuple[Floats, Floats, Floats]:
    """float64[S] each: start of each price, priced seconds until then, and per second."""
    prices = problem.prices
    if prices.is_flat:
        return np.zeros(1), np.zeros(1), np.ones(1)
    return prices.starts_s, prices.priced_s(prices.starts_s), prices.rates / prices.reference


def _relative_speed(problem: Problem) -> Floats:
    """float64[C]: mean speed per GPU of a class relative to the fastest."""
    slowness = problem.run_s * problem.config_gpus[None, :]
    speed = np.zeros((len(problem.rows), len(problem.cost)))
    for k, c in enumerate(problem.config_class):
        speed[:, c] = np.maximum(speed[:, c], 1.0 / np.maximum(slowness[:, k], SHORTEST_S))
    best = speed.max(axis=1, initial=0.0, keepdims=True)
    shares: Floats = np.divide(speed, best, out=np.zeros_like(speed), where=best > 0.0).mean(axis=0)
    return shares
