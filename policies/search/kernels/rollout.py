"""Rollout as a compiled kernel: the queue list-scheduled over the GPUs' release times.

After the running jobs that stay (`keep_running`), jobs in order get the node, GPUs and time of
least cost: energy at the nodes' power, tardiness, and rent for GPUs that others could use. No job
starts before its GPU's last release, so a node in use has no gaps, and the energy of all jobs adds
up to that of the nodes.
"""

from typing import NamedTuple

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import NONE, copy, extra_watts, fits
from policies.placement.kernels import compiled

NEVER = np.inf
TIE = 1e-12


class RolloutData(NamedTuple):
    """Data of a rollout: E jobs, N nodes sorted by C classes, K configurations.

    Nodes of class c are `first[c]` .. `first[c + 1]` - 1. `time_s` float64[E, K]: run time without
    launch, inf where impossible; `launch_s` what a launch adds. `current_node`, `current_config`:
    where a job runs now (-1: it does not), `moving` what not staying there costs. `risk`: a second
    of waiting counts for 1 + `risk` where ends are compared with due dates, because jobs that are
    still to come will be in the way. `slack_s` due date minus now, `weight` cost of a second after
    it, `haste` cost of any second before the end, `waiting` before the start. `release_s`
    float64[N, G]: when the GPUs to give are free, rising, inf where there is none; `opened_s` until
    when a node draws its base power anyhow; `queue` int64[G, N]: for every number of GPUs the nodes
    of each class by when they have so many free; `closes` int64[K]: 1 if the configuration takes
    whole nodes, so that the first is the best. `base`, `slope` float64[C]: cost per second of a
    node in use, and of each GPU in use beside it. `rent` float64[C]: worth of a GPU to others, as a
    share of the best one. `demand`, `capacity`, `power`, `busy`, `watts`: scarce now, as in
    `policies.cost_model.problem`; `retry_s` when a job without watts or resources, and no end to
    wait for, is tried again. `step_s`, `step_priced_s`, `step_rate` float64[S]: when each price
    begins, the priced seconds until then, and those of a second from then on
    (`policies.placement.priced_options`).
    """

    time_s: Floats
    launch_s: Floats
    current_node: Ints
    current_config: Ints
    moving: Floats
    risk: float
    slack_s: Floats
    weight: Floats
    haste: Floats
    waiting: Floats
    config_class: Ints
    config_gpus: Ints
    first: Ints
    release_s: Floats
    opened_s: Floats
    queue: Ints
    closes: Ints
    base: Floats
    slope: Floats
    rent: Floats
    demand: Floats
    capacity: Floats
    power: Floats
    busy: Ints
    watts: float
    retry_s: float
    step_s: Floats
    step_priced_s: Floats
    step_rate: Floats


class Schedule(NamedTuple):
    """Schedule in progress: release and open times of nodes, scarce resources, jobs' starts.

    `queue` as in `RolloutData`, `place` int64[G, N] where a node stands in it. `scarce` float64[2]:
    watts left, and the first end of anything placed so far.
    """

    release_s: Floats
    opened_s: Floats
    queue: Ints
    place: Ints
    capacity: Floats
    busy: Ints
    scarce: Floats
    node: Ints
    config: Ints
    start_s: Floats


def empty_schedule(data: RolloutData) -> Schedule:
    """Return the schedule of an empty cluster."""
    none, place = np.full_like(data.current_node, NONE), np.empty_like(data.queue)
    np.put_along_axis(place, data.queue, np.arange(place.shape[1])[None, :], axis=1)
    return Schedule(
        data.release_s, data.opened_s, data.queue, place, data.capacity, data.busy,
        np.array([data.watts, NEVER]), none, none.copy(), np.full(none.size, NEVER),
    )  # fmt: skip


@compiled
def copy_schedule(of: Schedule, to: Schedule) -> None:
    copy(of.release_s, to.release_s)
    copy(of.opened_s, to.opened_s)
    copy(of.queue, to.queue)
    copy(of.place, to.place)
    copy(of.capacity, to.capacity)
    copy(of.busy, to.busy)
    copy(of.scarce, to.scarce)
    copy(of.node, to.node)
    copy(of.config, to.config)
    copy(of.start_s, to.start_s)


@compiled
def occupy(
    release_s: Floats, queue: Ints, place: Ints, n: int, gpus: int, end_s: float, last: int
) -> None:
    """Take node n's GPUs that are free first until `end_s`.

    The node moves back in the queues of its class, whose last place is before `last`.
    """
    most = release_s.shape[1]
    for i in range(gpus):
        release_s[n, i] = end_s
    i = gpus
    while i < most and release_s[n, i] < end_s:
        release_s[n, i - gpus] = release_s[n, i]
        release_s[n, i] = end_s
        i += 1
    for i in range(most):
        at, free_s = place[i, n], release_s[n, i]
        while at + 1 < last and release_s[queue[i, at + 1], i] < free_s:
            following = queue[i, at + 1]
            queue[i, at] = following
            place[i, following] = at
            at += 1
        queue[i, at] = n
        place[i, n] = at


@compiled
def time_cost(
    start_s: float, end_s: float, slack_s: float, weight: float, haste: float, waiting: float
) -> float:
    """Cost of a run between these times, without energy."""
    late = weight * (end_s - slack_s) if end_s > slack_s else 0.0
    return haste * end_s + late + waiting * start_s


@compiled
def scan(
    queue: Ints, release_s: Floats, opened_s: Floats, first: int, last: int, gpus: int,
    run_s: float, base: float, slack_s: float,
    weight: float, haste: float, waiting: float, risk: float, enough: float, closes: bool,
) -> tuple[float, int, float]:  # fmt: skip
    """Return the best node of a class for a run: (cost beside that of the GPUs, node, start).

    The node is -1 if none costs less than `enough`. Nodes are sorted by release, so the search ends
    where a later end alone costs as much, or at an open node.
    """
    best, best_n, best_s, last_s, last_open_s = enough, NONE, 0.0, -1.0, -1.0
    for at in range(first, last):
        n = queue[gpus - 1, at]
        start_s, open_s = release_s[n, gpus - 1], opened_s[n]
        if start_s == last_s and open_s == last_open_s:
            continue
        end_s = start_s + run_s
        risk_s = risk * start_s
        cost = time_cost(start_s + risk_s, end_s + risk_s, slack_s, weight, haste, waiting)
        if start_s == NEVER or cost >= best:
            break
        alone_s = end_s - max(open_s, start_s)
        if alone_s > 0.0:
            cost += base * alone_s
        if cost < best - TIE:
            best, best_n, best_s = cost, n, start_s
        if closes or alone_s <= 0.0:
            break
        last_s, last_open_s = start_s, open_s
    return best, best_n, best_s


@compiled
def priced(data: RolloutData, at_s: float) -> float:
    """Priced seconds from now to `at_s`."""
    step = data.step_s.size - 1
    while step > 0 and data.step_s[step] > at_s:
        step -= 1
    return float(data.step_priced_s[step] + (at_s - data.step_s[step]) * data.step_rate[step])


@compiled
def cost_of(
    data: RolloutData, schedule: Schedule, j: int, n: int, k: int, start_s: float, run_s: float
) -> float:
    """Extra cost of job j there: energy of GPUs and node, and tardiness."""
    c, end_s = data.config_class[k], start_s + run_s
    end, from_s = priced(data, end_s), max(schedule.opened_s[n], start_s)
    cost = float(data.slope[c] * data.config_gpus[k] * (end - priced(data, start_s)))
    if end_s > from_s:
        cost += data.base[c] * (end - priced(data, from_s))
    risk_s = data.risk * start_s
    return cost + time_cost(
        start_s + risk_s, end_s + risk_s, data.slack_s[j], data.weight[j], data.haste[j],
        data.waiting[j],
    )  # fmt: skip


@compiled
def later(data: RolloutData, schedule: Schedule, j: int, n: int, c: int, gpus: int) -> float:
    """Start of job j on node n if scarce resources delay it, else 0."""
    free, busy, watts = schedule.capacity, schedule.busy, schedule.scarce[0]
    if fits(data.demand, free, data.power, busy, watts, j, n, c, gpus):
        return 0.0
    return float(data.retry_s if schedule.scarce[1] == NEVER else schedule.scarce[1])


@compiled
def scan_all(
    data: RolloutData, schedule: Schedule, j: int, k: int, run_s: float
) -> tuple[float, int, float]:
    """`scan` with scarce resources and several prices, GPUs included."""
    best, best_n, best_s, c, gpus = NEVER, NONE, 0.0, data.config_class[k], data.config_gpus[k]
    for at in range(data.first[c], data.first[c + 1]):
        n = schedule.queue[gpus - 1, at]
        start_s = schedule.release_s[n, gpus - 1]
        if start_s == NEVER:
            break
        if start_s == 0.0:
            start_s = later(data, schedule, j, n, c, gpus)
        cost = cost_of(data, schedule, j, n, k, start_s, run_s)
        if cost < best - TIE:
            best, best_n, best_s = cost, n, start_s
    return best, best_n, best_s


@compiled
def take(data: RolloutData, schedule: Schedule, j: int, n: int, k: int) -> None:
    """Take the scarce resources of a job that starts at once."""
    gpus = data.config_gpus[k]
    for r in range(data.demand.shape[1]):
        schedule.capacity[n, r] -= data.demand[j, r]
    if schedule.scarce[0] != NEVER:
        schedule.scarce[0] -= extra_watts(data.power, data.config_class[k], schedule.busy[n], gpus)
    schedule.busy[n] += gpus


@compiled
def staying_cost(data: RolloutData, schedule: Schedule, j: int) -> float:
    """Cost of leaving job j where it runs, inf if it cannot stay."""
    n, k = data.current_node[j], data.current_config[j]
    c, gpus = data.config_class[k], data.config_gpus[k]
    if schedule.release_s[n, gpus - 1] > 0.0 or later(data, schedule, j, n, c, gpus) > 0.0:
        return float(NEVER)
    return float(cost_of(data, schedule, j, n, k, 0.0, data.time_s[j, k]) - data.moving[j])


@compiled
def keep_running(data: RolloutData, empty: Schedule, schedule: Schedule, pinned: Ints) -> float:
    """Schedule the running jobs that stay (`pinned[j]` 1), before all others; return their cost."""
    copy_schedule(empty, schedule)
    scarce, total = data.demand.shape[1] > 0 or data.watts != np.inf, 0.0
    for j in range(pinned.size):
        if pinned[j] == 0 or data.current_node[j] == NONE:
            continue
        cost = staying_cost(data, schedule, j)
        if cost == NEVER:
            continue
        n, k = data.current_node[j], data.current_config[j]
        end_s, last = data.time_s[j, k], data.first[data.config_class[k] + 1]
        release_s, queue, place = schedule.release_s, schedule.queue, schedule.place
        occupy(release_s, queue, place, n, data.config_gpus[k], end_s, last)
        schedule.opened_s[n] = max(schedule.opened_s[n], end_s)
        schedule.node[j], schedule.config[j], schedule.start_s[j] = n, k, 0.0
        if scarce:
            schedule.scarce[1] = min(schedule.scarce[1], end_s)
            take(data, schedule, j, n, k)
        total += cost + data.moving[j]
    return total


@compiled
def list_schedule(
    data: RolloutData, schedule: Schedule, order: Ints, only: Ints, rent: float
) -> float:
    """Schedule the other jobs in this order, each where it costs least; return their cost.

    Configurations of `only` are set (-1: free). Arrays are unpacked once: passing the tuples to a
    function costs more than all the work for a job.
    """
    time_s, launch_s, moving, risk = data.time_s, data.launch_s, data.moving, data.risk
    current_node, current_config, closes = data.current_node, data.current_config, data.closes
    slack_s, weight, haste, waiting = data.slack_s, data.weight, data.haste, data.waiting
    config_class, config_gpus, first = data.config_class, data.config_gpus, data.first
    base, slope, worth = data.base, data.slope, data.rent
    release_s, opened_s = schedule.release_s, schedule.opened_s
    queue, place, node = schedule.queue, schedule.place, schedule.node
    scarce = data.demand.shape[1] > 0 or data.watts != np.inf
    plain, total = not scarce and data.step_s.size == 1, 0.0
    for i in range(order.size):
        j = order[i]
        if node[j] != NONE:
            continue
        best, best_n, best_k, best_s, best_run_s, best_rent = NEVER, NONE, NONE, 0.0, 0.0, 0.0
        if current_node[j] != NONE and (only[j] == NONE or only[j] == current_config[j]):
            n, k = current_node[j], current_config[j]
            c, gpus, run_s = config_class[k], config_gpus[k], time_s[j, k]
            if not plain:
                cost = staying_cost(data, schedule, j)
            elif release_s[n, gpus - 1] > 0.0:
                cost = NEVER
            else:
                cost = slope[c] * gpus * run_s + base[c] * max(0.0, run_s - opened_s[n])
                cost += time_cost(0.0, run_s, slack_s[j], weight[j], haste[j], 0.0) - moving[j]
            if cost != NEVER:
                best_n, best_k, best_run_s, best_rent = n, k, run_s, rent * worth[c] * gpus * run_s
                best = cost + best_rent
        for k in range(config_class.size):
            if time_s[j, k] == NEVER or (only[j] != NONE and only[j] != k):
                continue
            run_s, c, gpus = time_s[j, k] + launch_s[j], config_class[k], config_gpus[k]
            of_rent = rent * worth[c] * gpus * run_s
            fixed = of_rent + (slope[c] * gpus * run_s if plain else 0.0)
            if plain:
                cost, n, start_s = scan(
                    queue, release_s, opened_s, first[c], first[c + 1], gpus, run_s, base[c],
                    slack_s[j], weight[j], haste[j], waiting[j], risk, best - fixed,
                    closes[k] == 1,
                )  # fmt: skip
            else:
                cost, n, start_s = scan_all(data, schedule, j, k, run_s)
            if n != NONE and cost + fixed < best - TIE:
                best, best_rent = cost + fixed, of_rent
                best_n, best_k, best_s, best_run_s = n, k, start_s, run_s
        if best_n == NONE:
            continue
        end_s, last = best_s + best_run_s, first[config_class[best_k] + 1]
        occupy(release_s, queue, place, best_n, config_gpus[best_k], end_s, last)
        opened_s[best_n] = max(opened_s[best_n], end_s)
        node[j], schedule.config[j], schedule.start_s[j] = best_n, best_k, best_s
        if scarce:
            schedule.scarce[1] = min(schedule.scarce[1], end_s)
            if best_s == 0.0:
                take(data, schedule, j, best_n, best_k)
        total += best - best_rent + moving[j]
    return total
