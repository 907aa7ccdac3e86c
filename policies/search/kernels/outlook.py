"""A quick roll-out as a compiled kernel: the whole queue list-scheduled forward over the GPUs'
release times, and what that costs.

A schedule is made by taking jobs in an order, after the running jobs that are to stay (`settle`,
the same for many roll-outs). Each gets the node, GPUs and time at which it costs least, given what
was placed before it (`place_all`): energy at the nodes' power, tardiness, and rent for GPUs that
others could use. Nothing runs into the past of a GPU, so a node in use has no gaps, and the energy
of all jobs adds up to the account of the nodes. What starts at once is the decision.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.andreas.kernels.arrays import NONE
from policies.andreas.kernels.greedy import extra_watts, fits
from policies.contract.snapshot import Floats, Ints
from policies.placement.kernels import compiled

NEVER = np.inf
TIE = 1e-12


class Outlook(NamedTuple):
    """One call's data: E jobs, N nodes sorted by their C classes (those of c are first[c] ..
    first[c + 1] - 1), K configurations.

    `time_s` float64[E, K]: run time without launch, inf where impossible; `launch_s` what a launch
    adds. `home`, `home_config`: where a job runs now (-1: it does not), `moving` what not staying
    there costs. `risk`: a second of waiting counts for 1 + `risk` where ends are held against due
    dates, because jobs that are still to come will be in the way. `slack_s` due date minus now,
    `weight` cost of a second after it, `haste` cost of any second before the end. `release_s`
    float64[N, G]: when the GPUs to give are free, rising, inf where there is none; `opened_s` until
    when a node draws its base power anyhow; `queue` int64[G, N]: for every number of GPUs the nodes
    of each class by when they have so many free; `closes` int64[K]: whether the configuration takes
    whole nodes, so that the first is the best. `base`, `slope` float64[C]: cost per second of a
    node in use, and of each GPU in use beside it. `rent` float64[C]: what a GPU is worth to others,
    as a share of the best one. `demand`, `capacity`, `power`, `busy`, `watts`: scarce now, as in
    `kernels.arrays.Instance`; `retry_s` when what finds no watts or resources, and nothing to wait
    for, is tried again. `step_s`, `step_priced_s`, `step_rate` float64[S]: when each price begins,
    the priced seconds until then, and those of a second from then on
    (`policies.placement.options`).
    """

    time_s: Floats
    launch_s: Floats
    home: Ints
    home_config: Ints
    moving: Floats
    risk: float
    slack_s: Floats
    weight: Floats
    haste: Floats
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


class Board(NamedTuple):
    """What one roll-out changes: release times and open times of nodes, what is scarce now, and
    each job's place and start.

    `queue` as in `Outlook`, `place` int64[G, N] where a node stands in it. `scarce` float64[2]:
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


def new_board(data: Outlook) -> Board:
    """Room for a roll-out."""
    jobs = data.home.size
    return Board(
        np.zeros_like(data.release_s), np.zeros_like(data.opened_s), np.zeros_like(data.queue),
        np.zeros_like(data.queue),
        np.zeros_like(data.capacity), np.zeros_like(data.busy), np.zeros(2),
        np.zeros(jobs, np.int64), np.zeros(jobs, np.int64), np.zeros(jobs),
    )  # fmt: skip


@compiled
def clear(data: Outlook, board: Board) -> None:
    """Nothing is placed."""
    for n in range(data.opened_s.size):
        for i in range(data.release_s.shape[1]):
            board.release_s[n, i] = data.release_s[n, i]
            board.queue[i, n] = data.queue[i, n]
            board.place[i, data.queue[i, n]] = n
        for r in range(data.capacity.shape[1]):
            board.capacity[n, r] = data.capacity[n, r]
        board.opened_s[n] = data.opened_s[n]
        board.busy[n] = data.busy[n]
    board.scarce[0] = data.watts
    board.scarce[1] = NEVER
    for j in range(data.home.size):
        board.node[j] = NONE
        board.config[j] = NONE
        board.start_s[j] = NEVER


@compiled
def occupy(
    release_s: Floats, queue: Ints, place: Ints, n: int, gpus: int, end_s: float, last: int
) -> None:
    """Node n's GPUs that are free first are taken until `end_s`; the node moves back in the queues
    of its class, whose last place is before `last`.
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
def late_cost(end_s: float, slack_s: float, weight: float, haste: float) -> float:
    """What an end at that time costs, energy apart."""
    return haste * end_s + (weight * (end_s - slack_s) if end_s > slack_s else 0.0)


@compiled
def scan(
    queue: Ints, release_s: Floats, opened_s: Floats, first: int, last: int, gpus: int,
    run_s: float, base: float, slack_s: float,
    weight: float, haste: float, risk: float, enough: float, closes: bool,
) -> tuple[float, int, float]:  # fmt: skip
    """The best node of a class for a run: (cost beside that of the GPUs, node, start); node -1 if
    none costs less than `enough`.

    Nodes come by when they are free, so that the end of the search is known: costs of a later end
    alone, or a node open anyhow.
    """
    best, best_n, best_s, last_s, last_open_s = enough, NONE, 0.0, -1.0, -1.0
    for at in range(first, last):
        n = queue[gpus - 1, at]
        start_s, open_s = release_s[n, gpus - 1], opened_s[n]
        if start_s == last_s and open_s == last_open_s:
            continue
        end_s = start_s + run_s
        cost = late_cost(end_s + risk * start_s, slack_s, weight, haste)
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
def priced(data: Outlook, at_s: float) -> float:
    """Priced seconds from now to `at_s`."""
    step = data.step_s.size - 1
    while step > 0 and data.step_s[step] > at_s:
        step -= 1
    return float(data.step_priced_s[step] + (at_s - data.step_s[step]) * data.step_rate[step])


@compiled
def cost_of(
    data: Outlook, board: Board, j: int, n: int, k: int, start_s: float, run_s: float
) -> float:
    """Extra cost of job j there: energy of GPUs and node, and tardiness."""
    c, end_s = data.config_class[k], start_s + run_s
    end, from_s = priced(data, end_s), max(board.opened_s[n], start_s)
    cost = float(data.slope[c] * data.config_gpus[k] * (end - priced(data, start_s)))
    if end_s > from_s:
        cost += data.base[c] * (end - priced(data, from_s))
    return cost + late_cost(
        end_s + data.risk * start_s, data.slack_s[j], data.weight[j], data.haste[j]
    )


@compiled
def later(data: Outlook, board: Board, j: int, n: int, c: int, gpus: int) -> float:
    """Start of job j on node n if scarce resources delay it; 0 if they do not."""
    if fits(data.demand, board.capacity, data.power, board.busy, board.scarce[0], j, n, c, gpus):
        return 0.0
    return float(data.retry_s if board.scarce[1] == NEVER else board.scarce[1])


@compiled
def scan_all(data: Outlook, board: Board, j: int, k: int, run_s: float) -> tuple[float, int, float]:
    """As `scan` with scarce resources and prices: (cost, GPU energy, node, start)."""
    best, best_n, best_s, c, gpus = NEVER, NONE, 0.0, data.config_class[k], data.config_gpus[k]
    for at in range(data.first[c], data.first[c + 1]):
        n = board.queue[gpus - 1, at]
        start_s = board.release_s[n, gpus - 1]
        if start_s == NEVER:
            break
        if start_s == 0.0:
            start_s = later(data, board, j, n, c, gpus)
        cost = cost_of(data, board, j, n, k, start_s, run_s)
        if cost < best - TIE:
            best, best_n, best_s = cost, n, start_s
    return best, best_n, best_s


@compiled
def take(data: Outlook, board: Board, j: int, n: int, k: int) -> None:
    """Take what is scarce now for a job that starts at once."""
    gpus = data.config_gpus[k]
    for r in range(data.demand.shape[1]):
        board.capacity[n, r] -= data.demand[j, r]
    if board.scarce[0] != NEVER:
        board.scarce[0] -= extra_watts(data.power, data.config_class[k], board.busy[n], gpus)
    board.busy[n] += gpus


@compiled
def at_home(data: Outlook, board: Board, j: int) -> float:
    """What it costs that job j runs on where it runs, inf if it cannot."""
    n, k = data.home[j], data.home_config[j]
    c, gpus = data.config_class[k], data.config_gpus[k]
    if board.release_s[n, gpus - 1] > 0.0 or later(data, board, j, n, c, gpus) > 0.0:
        return float(NEVER)
    return float(cost_of(data, board, j, n, k, 0.0, data.time_s[j, k]) - data.moving[j])


@compiled
def copy_board(of: Board, to: Board) -> None:
    """Element by element: whole-array assignment takes seconds to compile."""
    release_s, opened_s, queue, place, capacity, busy = (
        of.release_s,
        of.opened_s,
        of.queue,
        of.place,
        of.capacity,
        of.busy,
    )
    to_release_s, to_opened_s, to_queue, to_place, to_capacity = (
        to.release_s,
        to.opened_s,
        to.queue,
        to.place,
        to.capacity,
    )
    node, config, start_s, to_node, to_config, to_start_s = (
        of.node,
        of.config,
        of.start_s,
        to.node,
        to.config,
        to.start_s,
    )
    for n in range(opened_s.size):
        to_opened_s[n] = opened_s[n]
        to.busy[n] = busy[n]
        for i in range(release_s.shape[1]):
            to_release_s[n, i] = release_s[n, i]
        for r in range(capacity.shape[1]):
            to_capacity[n, r] = capacity[n, r]
    for i in range(queue.shape[0]):
        for n in range(queue.shape[1]):
            to_queue[i, n] = queue[i, n]
            to_place[i, n] = place[i, n]
    for i in range(2):
        to.scarce[i] = of.scarce[i]
    for j in range(node.size):
        to_node[j] = node[j]
        to_config[j] = config[j]
        to_start_s[j] = start_s[j]


@compiled
def settle(data: Outlook, board: Board, pinned: Ints) -> float:
    """Cost of the running jobs that stay, placed before all others."""
    clear(data, board)
    scarce, total = data.demand.shape[1] > 0 or data.watts != np.inf, 0.0
    for j in range(pinned.size):
        if pinned[j] == 0 or data.home[j] == NONE:
            continue
        cost = at_home(data, board, j)
        if cost == NEVER:
            continue
        n, k = data.home[j], data.home_config[j]
        end_s, c = data.time_s[j, k], data.config_class[k]
        occupy(
            board.release_s,
            board.queue,
            board.place,
            n,
            data.config_gpus[k],
            end_s,
            data.first[c + 1],
        )
        board.opened_s[n] = max(board.opened_s[n], end_s)
        board.node[j], board.config[j], board.start_s[j] = n, k, 0.0
        if scarce:
            board.scarce[1] = min(board.scarce[1], end_s)
            take(data, board, j, n, k)
        total += cost + data.moving[j]
    return total


@compiled
def place_all(data: Outlook, board: Board, order: Ints, only: Ints, rent: float) -> float:
    """What the jobs that are not yet on the board cost, placed in this order; configurations of
    `only` are set (-1: free).

    Arrays are unpacked once: handing the tuples to a function costs more than all the work for a
    job.
    """
    time_s, launch_s, home, home_config, moving = (
        data.time_s,
        data.launch_s,
        data.home,
        data.home_config,
        data.moving,
    )
    slack_s, weight, haste, config_class, config_gpus = (
        data.slack_s,
        data.weight,
        data.haste,
        data.config_class,
        data.config_gpus,
    )
    base, slope, worth, first, closes = data.base, data.slope, data.rent, data.first, data.closes
    release_s, opened_s, queue, place = board.release_s, board.opened_s, board.queue, board.place
    node, config, starts_s, risk, configs = (
        board.node,
        board.config,
        board.start_s,
        data.risk,
        config_class.size,
    )
    scarce = data.demand.shape[1] > 0 or data.watts != np.inf
    plain, total = not scarce and data.step_s.size == 1, 0.0
    for i in range(order.size):
        j = order[i]
        if node[j] != NONE:
            continue
        best, best_n, best_k, best_s, best_run_s, best_rent = NEVER, NONE, NONE, 0.0, 0.0, 0.0
        if home[j] != NONE and (only[j] == NONE or only[j] == home_config[j]):
            n, k = home[j], home_config[j]
            c, gpus, run_s = config_class[k], config_gpus[k], time_s[j, k]
            if not plain:
                cost = at_home(data, board, j)
            elif release_s[n, gpus - 1] > 0.0:
                cost = NEVER
            else:
                cost = slope[c] * gpus * run_s + base[c] * max(0.0, run_s - opened_s[n])
                cost += late_cost(run_s, slack_s[j], weight[j], haste[j]) - moving[j]
            if cost != NEVER:
                best_n, best_k, best_run_s, best_rent = n, k, run_s, rent * worth[c] * gpus * run_s
                best = cost + best_rent
        for k in range(configs):
            if time_s[j, k] == NEVER or (only[j] != NONE and only[j] != k):
                continue
            run_s, c, gpus = time_s[j, k] + launch_s[j], config_class[k], config_gpus[k]
            of_rent = rent * worth[c] * gpus * run_s
            fixed = of_rent + (slope[c] * gpus * run_s if plain else 0.0)
            if plain:
                cost, n, start_s = scan(
                    queue, release_s, opened_s, first[c], first[c + 1], gpus, run_s, base[c],
                    slack_s[j], weight[j], haste[j],
                    risk, best - fixed, closes[k] == 1,
                )  # fmt: skip
            else:
                cost, n, start_s = scan_all(data, board, j, k, run_s)
            if n != NONE and cost + fixed < best - TIE:
                best, best_n, best_k, best_s, best_run_s, best_rent = (
                    cost + fixed,
                    n,
                    k,
                    start_s,
                    run_s,
                    of_rent,
                )
        if best_n == NONE:
            continue
        end_s = best_s + best_run_s
        occupy(
            release_s,
            queue,
            place,
            best_n,
            config_gpus[best_k],
            end_s,
            first[config_class[best_k] + 1],
        )
        opened_s[best_n] = max(opened_s[best_n], end_s)
        node[j], config[j], starts_s[j] = best_n, best_k, best_s
        if scarce:
            board.scarce[1] = min(board.scarce[1], end_s)
            if best_s == 0.0:
                take(data, board, j, best_n, best_k)
        total += best - best_rent + moving[j]
    return total
