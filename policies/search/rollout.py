"""Data of rollouts of a round's problem, orders to try, and prices of occupied GPUs (rents)."""

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import NONE
from policies.cost_model.problem import Problem
from policies.placement.from_snapshot import remaining_s
from policies.search.kernels.rollout import RolloutData

LOOK_AHEAD = (8.0, 2.0, 0.5)
"""Look-ahead k of each order by apparent tardiness cost (ATC) to start from."""

RENTS = (0.0, 0.25, 1.0)
"""Rents to start from, as fractions of the cost of a second's delay of all jobs per GPU."""

SHORTEST_S = 1e-6
"""Least run time of a job."""

UNPLACEABLE_S = 1e12
"""Run time of a job that fits nowhere."""


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
    # 1. The kernel has the nodes by class; node n of the problem is its node kernel_node[n].
    nodes = _by_class(problem)
    kernel_node = np.empty(len(nodes), dtype=np.int64)
    kernel_node[nodes] = np.arange(len(nodes))
    classes = problem.node_class[nodes]

    # 2. When GPUs come free, and for each number of GPUs the nodes in that order.
    most_gpus = problem.power.shape[1] - 1
    release_s, opened_s = _releases(problem, most_gpus)
    release_s = release_s[nodes]
    opened_s = opened_s[nodes]
    gpus_of_node = np.isfinite(release_s).sum(axis=1)
    queue = [np.lexsort((release_s[:, g], classes)) for g in range(most_gpus)]

    # 3. Costs. A job that nothing else hurries pays for its time by `haste`.
    running = problem.running
    base, slope = _linear_costs(problem)
    step_s, step_priced_s, step_rate = _prices(problem)
    weight = problem.column("tardiness_weight")
    waiting = problem.column("waiting_cost")
    has_no_due_date = ~np.isfinite(problem.slack_s) | (weight <= 0.0)
    is_unhurried = has_no_due_date & (waiting <= 0.0)
    move_fraction = hysteresis + move_cost * _whole_over_left(problem)
    data = RolloutData(
        time_s=_time_s(problem, classes, gpus_of_node),
        launch_s=problem.move_s,
        current_node=np.where(running, kernel_node[problem.current_node], NONE),
        current_config=problem.current_config,
        moving=np.where(running, move_fraction * problem.cheapest, 0.0),
        risk=risk,
        slack_s=problem.slack_s,
        weight=weight,
        haste=np.where(is_unhurried, haste * problem.cheapest / fastest_s(problem), 0.0),
        waiting=waiting,
        config_class=problem.config_class,
        config_gpus=problem.config_gpus,
        first=np.searchsorted(classes, np.arange(len(problem.cost) + 1)).astype(np.int64),
        release_s=release_s,
        opened_s=opened_s,
        queue=np.stack(queue).astype(np.int64),
        closes=_closes(problem),
        base=base,
        slope=slope,
        rent=_relative_speed(problem),
        demand=problem.demand,
        capacity=np.ascontiguousarray(problem.capacity[nodes]),
        power=problem.power,
        busy=problem.busy[nodes],
        watts=problem.watts,
        retry_s=max(1.0, problem.snapshot.round_s),
        step_s=step_s,
        step_priced_s=step_priced_s,
        step_rate=step_rate,
    )
    return data, nodes


def _whole_over_left(problem: Problem) -> Floats:
    """float64[E]: all steps of a job over those that are left, at least 1."""
    total = problem.column("total_steps")
    left = problem.column("remaining_steps")
    ratio: Floats = np.maximum(total, left) / np.maximum(left, 1.0)
    return ratio


def _releases(problem: Problem, most_gpus: int) -> tuple[Floats, Floats]:
    """Return `RolloutData.release_s` float64[N, G] and `opened_s` float64[N], by problem's nodes.

    GPUs of a running job about which nothing is decided are free when it ends.
    """
    # 1. Ends of these jobs on each node, once for each GPU.
    plan = problem.plan
    number = {state_node: n for n, state_node in enumerate(problem.numbers.tolist())}
    ends_s: dict[int, list[float]] = {}
    for stay in plan.pinned:
        end_s = remaining_s(problem.snapshot, plan.options.speeds, stay)
        for part in stay.allocation.parts:
            if part.node in number:
                gpus = part.devices.bit_count()
                ends_s.setdefault(number[part.node], []).extend([end_s] * gpus)

    # 2. GPUs to give are free now, then those of these jobs. A node with GPUs in use by anything
    #    else is open for ever.
    release_s = np.where(np.arange(most_gpus) < problem.gpus[:, None], 0.0, np.inf)
    opened_s = np.where(problem.busy > 0, np.inf, 0.0)
    for n, ends in ends_s.items():
        free = int(problem.gpus[n])
        release_s[n, free : free + len(ends)] = sorted(ends)
        opened_s[n] = max(ends) if len(ends) == problem.busy[n] else np.inf
    return release_s, opened_s


def orders(problem: Problem) -> Ints:
    """int64[S, E]: orders of the jobs to start from; equal jobs by arrival.

    By apparent tardiness cost, delay cost over run time, pressure, and due date.
    """
    run_s = fastest_s(problem)
    scores = [_apparent_tardiness_cost(problem, look_ahead) for look_ahead in LOOK_AHEAD]
    scores.append(_delay_cost(problem) / run_s)
    scores.append(run_s - problem.slack_s)
    scores.append(-problem.slack_s)
    arrival_s = problem.column("arrival_s")
    return np.stack([np.lexsort((arrival_s, -score)).astype(np.int64) for score in scores])


def rents(problem: Problem) -> Floats:
    """float64[R]: rents to start from, per second of a GPU of the fastest class."""
    delay_cost = float(_delay_cost(problem).sum())
    return np.array(RENTS) * delay_cost / max(int(problem.gpus.sum()), 1)


def fastest_s(problem: Problem) -> Floats:
    """float64[E]: least run time with a launch, > 0; very long if it fits nowhere."""
    fits = np.isfinite(problem.fastest_s)
    return np.where(fits, np.maximum(problem.fastest_s, SHORTEST_S), UNPLACEABLE_S)


def _delay_cost(problem: Problem) -> Floats:
    """float64[E]: cost of a second's delay of each job if it is late."""
    total: Floats = problem.column("tardiness_weight") + problem.column("waiting_cost")
    return total


def _apparent_tardiness_cost(problem: Problem, look_ahead: float) -> Floats:
    """float64[E]: w / t * exp(-max(0, d - T_c - t) / (k * mean t)), with t the least run time.

    k is `look_ahead`. The cost of waiting over t is added, whatever the slack.
    """
    run_s = fastest_s(problem)
    fits = run_s < UNPLACEABLE_S
    mean_s = float(run_s[fits].mean()) if fits.any() else 1.0
    slack_s = np.maximum(problem.slack_s - run_s, 0.0)
    priority = problem.column("tardiness_weight") / run_s
    score: Floats = priority * np.exp(-slack_s / (look_ahead * mean_s))
    return score + problem.column("waiting_cost") / run_s


def _by_class(problem: Problem) -> Ints:
    """int64[N]: nodes by class, those without running jobs first, for new ones."""
    running = np.bincount(problem.current_node[problem.running], minlength=len(problem.nodes))
    return np.lexsort((running, problem.node_class)).astype(np.int64)


def _time_s(problem: Problem, classes: Ints, gpus: Ints) -> Floats:
    """float64[E, K]: run times without launch, inf where no node of a class ever has the GPUs.

    `classes`, `gpus` int64[N]: class of each node, and its GPUs that are or come free.
    """
    fits = problem.config_gpus <= _most_gpus(problem, classes, gpus)[problem.config_class]
    return np.where(fits, np.maximum(problem.allowed_s, SHORTEST_S), np.inf)


def _closes(problem: Problem) -> Ints:
    """int64[K]: 1 if the configuration fills its node and nothing else runs on any of its class."""
    fills_none = np.iinfo(np.int64).max
    gpus = np.where(problem.busy > 0, fills_none, problem.gpus)
    most = _most_gpus(problem, problem.node_class, gpus)
    return (problem.config_gpus >= most[problem.config_class]).astype(np.int64)


def _most_gpus(problem: Problem, classes: Ints, gpus: Ints) -> Ints:
    """int64[C]: greatest of `gpus` int64[N] in each class, `classes` int64[N]."""
    most = np.zeros(len(problem.cost), dtype=np.int64)
    np.maximum.at(most, classes, gpus)
    return most


def _linear_costs(problem: Problem) -> tuple[Floats, Floats]:
    """float64[C] each: cost per second of a node, and of each GPU, by P(1) and P(G).

    The line through the costs of one GPU and of all in use.
    """
    most_gpus = np.ones(len(problem.cost), dtype=np.int64)
    np.maximum.at(most_gpus, problem.config_class, problem.config_gpus)
    cost_of_one = problem.cost[:, 1]
    cost_of_all = problem.cost[np.arange(len(most_gpus)), most_gpus]
    slope = (cost_of_all - cost_of_one) / np.maximum(most_gpus - 1, 1)
    slope = np.where(most_gpus > 1, slope, 0.0)
    return np.maximum(cost_of_one - slope, 0.0), np.maximum(slope, 0.0)


def _prices(problem: Problem) -> tuple[Floats, Floats, Floats]:
    """float64[S] each: start of each price, priced seconds until then, and those of a second."""
    prices = problem.prices
    if prices.is_flat:
        return np.zeros(1), np.zeros(1), np.ones(1)
    return prices.starts_s, prices.priced_s(prices.starts_s), prices.rates / prices.reference


def _relative_speed(problem: Problem) -> Floats:
    """float64[C]: speed per GPU of a class relative to the fastest class, the mean of all jobs."""
    gpu_s = problem.run_s * problem.config_gpus[None, :]
    speed = np.zeros((len(problem.rows), len(problem.cost)))
    for k, c in enumerate(problem.config_class):
        speed[:, c] = np.maximum(speed[:, c], 1.0 / np.maximum(gpu_s[:, k], SHORTEST_S))
    best = speed.max(axis=1, initial=0.0, keepdims=True)
    relative = np.divide(speed, best, out=np.zeros_like(speed), where=best > 0.0)
    mean: Floats = relative.mean(axis=0)
    return mean
