"""Rollout as a compiled kernel: the queue list-scheduled over the GPUs' release times.

After the running jobs that stay (`keep_running`), each job in order gets the node, GPUs and time of
least cost (`list_schedule`): energy at the nodes' power, tardiness, waiting, and rent for GPUs that
others could use. A job's GPUs are the ones of its node that are free first, and no job starts
before the last of them is free. So a node in use has no gaps, and the energy of all jobs adds up to
that of the nodes.

Sizes: E jobs, N nodes in C classes of at most G GPUs, K configurations (a class and a number of
GPUs), R scarce resources. Letters: job j, node n, class c, configuration k. Times are seconds from
now.
"""

from typing import NamedTuple

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import NONE, copy, extra_watts, fits
from policies.placement.kernels import compiled

NEVER = np.inf
"""Time or cost of what cannot be."""

TIE = 1e-12
"""Cost by which a place must be better than an earlier one."""


class RolloutData(NamedTuple):
    """Data of a rollout; nodes are sorted by class."""

    # Run times and places of the jobs.
    time_s: Floats
    """float64[E, K]: run time without launch, inf where impossible."""
    launch_s: Floats
    """float64[E]: time that a launch adds."""
    current_node: Ints
    """int64[E]: node where a job runs now, or -1."""
    current_config: Ints
    """int64[E]: configuration in which it runs there, or -1."""

    # Costs of the jobs.
    moving: Floats
    """float64[E]: cost of not staying where the job runs now."""
    risk: float
    """Expected growth of a wait, as a fraction of it.

    A start after t seconds counts as one after t * (1 + risk), as jobs still to come will be in the
    way.
    """
    slack_s: Floats
    """float64[E]: due date minus now."""
    weight: Floats
    """float64[E]: cost of a second after the due date."""
    haste: Floats
    """float64[E]: cost of a second before the end."""
    waiting: Floats
    """float64[E]: cost of a second before the start."""

    # Configurations, classes and nodes.
    config_class: Ints
    """int64[K]: class of its nodes."""
    config_gpus: Ints
    """int64[K]: number of its GPUs."""
    first: Ints
    """int64[C + 1]: nodes of class c are `first[c]` .. `first[c + 1]` - 1."""
    release_s: Floats
    """float64[N, G]: when the GPUs to give are free, rising; inf beyond their number."""
    opened_s: Floats
    """float64[N]: time until which a node draws its base power anyhow."""
    queue: Ints
    """int64[G, N]: for each number of GPUs - 1 the nodes of each class by when so many are free."""
    closes: Ints
    """int64[K]: 1 if the configuration takes whole nodes, so that the first one is the best."""
    base: Floats
    """float64[C]: cost per priced second of a node in use."""
    slope: Floats
    """float64[C]: cost per priced second of each of its GPUs in use."""
    rent: Floats
    """float64[C]: worth of a GPU to others, relative to that of the best class."""

    # Scarce resources and power, now; as in `policies.cost_model.problem`.
    demand: Floats
    capacity: Floats
    power: Floats
    busy: Ints
    watts: float
    retry_s: float
    """Time after which a job without watts or resources is tried again if nothing ends before."""

    # Prices by time (`policies.placement.priced_options`); float64[S] each.
    step_s: Floats
    """Start of each price."""
    step_priced_s: Floats
    """Priced seconds until then."""
    step_rate: Floats
    """Priced seconds of a second from then on."""


class Schedule(NamedTuple):
    """A schedule in progress, changed in place."""

    # As in `RolloutData`.
    release_s: Floats
    opened_s: Floats
    queue: Ints

    position: Ints
    """int64[G, N]: position of each node in `queue`."""

    # Scarce resources and GPUs in use, now.
    capacity: Floats
    busy: Ints
    scarce: Floats
    """float64[2]: watts left under the power cap, and the first end of any job placed so far."""

    # The schedule, by job.
    node: Ints
    """int64[E]: -1 if not scheduled."""
    config: Ints
    """int64[E]: -1 if not scheduled."""
    start_s: Floats
    """float64[E]: inf if not scheduled."""


def empty_schedule(data: RolloutData) -> Schedule:
    """Return the schedule without any of the jobs. It is not to be changed: arrays are shared."""
    position = np.empty_like(data.queue)
    np.put_along_axis(position, data.queue, np.arange(position.shape[1])[None, :], axis=1)
    jobs = data.current_node.size
    return Schedule(
        release_s=data.release_s,
        opened_s=data.opened_s,
        queue=data.queue,
        position=position,
        capacity=data.capacity,
        busy=data.busy,
        scarce=np.array([data.watts, NEVER]),
        node=np.full_like(data.current_node, NONE),
        config=np.full_like(data.current_node, NONE),
        start_s=np.full(jobs, NEVER),
    )


@compiled
def copy_schedule(source: Schedule, target: Schedule) -> None:
    """Copy a schedule into the arrays of another."""
    copy(source.release_s, target.release_s)
    copy(source.opened_s, target.opened_s)
    copy(source.queue, target.queue)
    copy(source.position, target.position)
    copy(source.capacity, target.capacity)
    copy(source.busy, target.busy)
    copy(source.scarce, target.scarce)
    copy(source.node, target.node)
    copy(source.config, target.config)
    copy(source.start_s, target.start_s)


@compiled
def keep_running(data: RolloutData, empty: Schedule, schedule: Schedule, pinned: Ints) -> float:
    """Schedule the running jobs that stay (`pinned[j]` 1), before all others; return their cost.

    `schedule` is first set to `empty`. A job that cannot stay is left out.
    """
    copy_schedule(empty, schedule)
    is_scarce = data.demand.shape[1] > 0 or data.watts != np.inf
    total = 0.0
    for j in range(pinned.size):
        if pinned[j] == 0 or data.current_node[j] == NONE:
            continue
        cost = staying_cost(data, schedule, j)
        if cost == NEVER:
            continue
        n = data.current_node[j]
        k = data.current_config[j]
        end_s = data.time_s[j, k]
        last = data.first[data.config_class[k] + 1]
        gpus = data.config_gpus[k]
        occupy(schedule.release_s, schedule.queue, schedule.position, n, gpus, end_s, last)
        schedule.opened_s[n] = max(schedule.opened_s[n], end_s)
        schedule.node[j] = n
        schedule.config[j] = k
        schedule.start_s[j] = 0.0
        if is_scarce:
            schedule.scarce[1] = min(schedule.scarce[1], end_s)
            take(data, schedule, j, n, k)
        total += cost + data.moving[j]
    return total


@compiled
def list_schedule(
    data: RolloutData, schedule: Schedule, order: Ints, only: Ints, rent: float
) -> float:
    """Schedule the other jobs in this order, each where it costs least; return their cost.

    `only` int64[E]: the configuration that a job must have, -1 for any. `rent`: price per second of
    a GPU of the best class; it decides where jobs run, but is no part of the cost.
    """
    # Arrays are unpacked once: passing the tuples to a function costs more than all the work for a
    # job.
    time_s, launch_s, moving, risk = data.time_s, data.launch_s, data.moving, data.risk
    current_node, current_config, closes = data.current_node, data.current_config, data.closes
    slack_s, weight, haste, waiting = data.slack_s, data.weight, data.haste, data.waiting
    config_class, config_gpus, first = data.config_class, data.config_gpus, data.first
    base, slope, worth = data.base, data.slope, data.rent
    release_s, opened_s = schedule.release_s, schedule.opened_s
    queue, position, node = schedule.queue, schedule.position, schedule.node

    is_scarce = data.demand.shape[1] > 0 or data.watts != np.inf
    is_plain = not is_scarce and data.step_s.size == 1  # neither scarce resources nor prices
    total = 0.0
    for i in range(order.size):
        j = order[i]
        if node[j] != NONE:
            continue
        best = NEVER
        best_n = NONE
        best_k = NONE
        best_s = 0.0
        best_run_s = 0.0
        best_rent = 0.0

        # 1. Stay where it runs.
        if current_node[j] != NONE and (only[j] == NONE or only[j] == current_config[j]):
            n = current_node[j]
            k = current_config[j]
            c = config_class[k]
            gpus = config_gpus[k]
            run_s = time_s[j, k]
            if not is_plain:
                cost = staying_cost(data, schedule, j)
            elif release_s[n, gpus - 1] > 0.0:
                cost = NEVER
            else:
                cost = slope[c] * gpus * run_s + base[c] * max(0.0, run_s - opened_s[n])
                cost += time_cost(0.0, run_s, slack_s[j], weight[j], haste[j], 0.0) - moving[j]
            if cost != NEVER:
                best_n = n
                best_k = k
                best_run_s = run_s
                best_rent = rent * worth[c] * gpus * run_s
                best = cost + best_rent

        # 2. The best node and time in each configuration.
        for k in range(config_class.size):
            if time_s[j, k] == NEVER or (only[j] != NONE and only[j] != k):
                continue
            run_s = time_s[j, k] + launch_s[j]
            c = config_class[k]
            gpus = config_gpus[k]
            rent_of_run = rent * worth[c] * gpus * run_s
            if is_plain:
                fixed = rent_of_run + slope[c] * gpus * run_s
                cost, n, start_s = scan(
                    queue,
                    release_s,
                    opened_s,
                    first[c],
                    first[c + 1],
                    gpus,
                    run_s,
                    base[c],
                    slack_s[j],
                    weight[j],
                    haste[j],
                    waiting[j],
                    risk,
                    best - fixed,
                    closes[k] == 1,
                )
            else:
                fixed = rent_of_run
                cost, n, start_s = scan_all(data, schedule, j, k, run_s)
            if n != NONE and cost + fixed < best - TIE:
                best = cost + fixed
                best_rent = rent_of_run
                best_n = n
                best_k = k
                best_s = start_s
                best_run_s = run_s

        # 3. Schedule it there, if anywhere.
        if best_n == NONE:
            continue
        end_s = best_s + best_run_s
        last = first[config_class[best_k] + 1]
        occupy(release_s, queue, position, best_n, config_gpus[best_k], end_s, last)
        opened_s[best_n] = max(opened_s[best_n], end_s)
        node[j] = best_n
        schedule.config[j] = best_k
        schedule.start_s[j] = best_s
        if is_scarce:
            schedule.scarce[1] = min(schedule.scarce[1], end_s)
            if best_s == 0.0:
                take(data, schedule, j, best_n, best_k)
        total += best - best_rent + moving[j]
    return total


@compiled
def scan(
    queue: Ints,
    release_s: Floats,
    opened_s: Floats,
    first: int,
    last: int,
    gpus: int,
    run_s: float,
    base: float,
    slack_s: float,
    weight: float,
    haste: float,
    waiting: float,
    risk: float,
    enough: float,
    closes: bool,
) -> tuple[float, int, float]:
    """Return the best node of a class for a run: (cost beside that of the GPUs, node, start).

    The node is -1 if none costs less than `enough`. The class has positions `first` .. `last` - 1
    of the queue; the others are elements of `RolloutData`. Nodes are sorted by release, so the
    search ends where a later end alone costs as much, or at a node that is open anyhow.
    """
    best = enough
    best_n = NONE
    best_s = 0.0
    previous_start_s = -1.0
    previous_open_s = -1.0
    for position in range(first, last):
        # 1. A node like the one before costs the same.
        n = queue[gpus - 1, position]
        start_s = release_s[n, gpus - 1]
        open_s = opened_s[n]
        if start_s == previous_start_s and open_s == previous_open_s:
            continue

        # 2. The cost of its times, and of its base power while no other job needs it.
        end_s = start_s + run_s
        risk_s = risk * start_s
        cost = time_cost(start_s + risk_s, end_s + risk_s, slack_s, weight, haste, waiting)
        if start_s == NEVER or cost >= best:
            break
        alone_s = end_s - max(open_s, start_s)
        if alone_s > 0.0:
            cost += base * alone_s
        if cost < best - TIE:
            best = cost
            best_n = n
            best_s = start_s
        if closes or alone_s <= 0.0:
            break
        previous_start_s = start_s
        previous_open_s = open_s
    return best, best_n, best_s


@compiled
def scan_all(
    data: RolloutData, schedule: Schedule, j: int, k: int, run_s: float
) -> tuple[float, int, float]:
    """Return the same as `scan` with scarce resources and several prices; GPUs are in the cost."""
    best = NEVER
    best_n = NONE
    best_s = 0.0
    c = data.config_class[k]
    gpus = data.config_gpus[k]
    for position in range(data.first[c], data.first[c + 1]):
        n = schedule.queue[gpus - 1, position]
        start_s = schedule.release_s[n, gpus - 1]
        if start_s == NEVER:
            break
        if start_s == 0.0:
            start_s = delayed_start_s(data, schedule, j, n, c, gpus)
        cost = cost_of(data, schedule, j, n, k, start_s, run_s)
        if cost < best - TIE:
            best = cost
            best_n = n
            best_s = start_s
    return best, best_n, best_s


@compiled
def staying_cost(data: RolloutData, schedule: Schedule, j: int) -> float:
    """Return the cost of leaving job j where it runs, less that of moving; inf if it cannot."""
    n = data.current_node[j]
    k = data.current_config[j]
    c = data.config_class[k]
    gpus = data.config_gpus[k]
    if schedule.release_s[n, gpus - 1] > 0.0:
        return float(NEVER)
    if delayed_start_s(data, schedule, j, n, c, gpus) > 0.0:
        return float(NEVER)
    return float(cost_of(data, schedule, j, n, k, 0.0, data.time_s[j, k]) - data.moving[j])


@compiled
def cost_of(
    data: RolloutData, schedule: Schedule, j: int, n: int, k: int, start_s: float, run_s: float
) -> float:
    """Return the extra cost of job j there and then: energy of GPUs and node, and times."""
    c = data.config_class[k]
    end_s = start_s + run_s
    priced_end_s = priced(data, end_s)
    cost = float(data.slope[c] * data.config_gpus[k] * (priced_end_s - priced(data, start_s)))
    alone_from_s = max(schedule.opened_s[n], start_s)
    if end_s > alone_from_s:
        cost += data.base[c] * (priced_end_s - priced(data, alone_from_s))
    risk_s = data.risk * start_s
    return cost + time_cost(
        start_s + risk_s,
        end_s + risk_s,
        data.slack_s[j],
        data.weight[j],
        data.haste[j],
        data.waiting[j],
    )


@compiled
def time_cost(
    start_s: float, end_s: float, slack_s: float, weight: float, haste: float, waiting: float
) -> float:
    """Return the cost of a run between these times, without energy."""
    tardiness = weight * (end_s - slack_s) if end_s > slack_s else 0.0
    return haste * end_s + tardiness + waiting * start_s


@compiled
def priced(data: RolloutData, at_s: float) -> float:
    """Return the priced seconds from now to `at_s`."""
    step = data.step_s.size - 1
    while step > 0 and data.step_s[step] > at_s:
        step -= 1
    return float(data.step_priced_s[step] + (at_s - data.step_s[step]) * data.step_rate[step])


@compiled
def delayed_start_s(
    data: RolloutData, schedule: Schedule, j: int, n: int, c: int, gpus: int
) -> float:
    """Return the start of job j on node n if scarce resources or watts delay it, else 0."""
    capacity = schedule.capacity
    busy = schedule.busy
    watts = schedule.scarce[0]
    if fits(data.demand, capacity, data.power, busy, watts, j, n, c, gpus):
        return 0.0
    first_end_s = schedule.scarce[1]
    return float(data.retry_s if first_end_s == NEVER else first_end_s)


@compiled
def take(data: RolloutData, schedule: Schedule, j: int, n: int, k: int) -> None:
    """Take the scarce resources and watts of a job that starts at once."""
    gpus = data.config_gpus[k]
    for r in range(data.demand.shape[1]):
        schedule.capacity[n, r] -= data.demand[j, r]
    if schedule.scarce[0] != NEVER:
        schedule.scarce[0] -= extra_watts(data.power, data.config_class[k], schedule.busy[n], gpus)
    schedule.busy[n] += gpus


@compiled
def occupy(
    release_s: Floats, queue: Ints, position: Ints, n: int, gpus: int, end_s: float, last: int
) -> None:
    """Take node n's GPUs that are free first until `end_s`.

    The node moves back in the queues of its class, which end before position `last`.
    """
    # 1. Its release times, sorted again.
    most = release_s.shape[1]
    for i in range(gpus):
        release_s[n, i] = end_s
    i = gpus
    while i < most and release_s[n, i] < end_s:
        release_s[n, i - gpus] = release_s[n, i]
        release_s[n, i] = end_s
        i += 1

    # 2. Its position in each queue: nodes that are free earlier move forward.
    for i in range(most):
        own = position[i, n]
        free_s = release_s[n, i]
        while own + 1 < last and release_s[queue[i, own + 1], i] < free_s:
            following = queue[i, own + 1]
            queue[i, own] = following
            position[i, following] = own
            own += 1
        queue[i, own] = n
        position[i, n] = own
