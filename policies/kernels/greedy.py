"""ANDREAS' Randomized Greedy (Algorithm 1) as a compiled kernel over dense arrays.

Nodes of one class (`Instance.cost` row) with f free GPUs lie in one list, so that best fit is the head of the first list with
enough; an iteration costs O(GPUs), not O(jobs): neighbours are swapped lazily while the queue is read, reading stops when nothing
that is left can fit, and the postponement cost is the total minus what was assigned.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.kernels import compiled
from policies.snapshot import Floats, Ints

CODED = 0
PAPER = 1
NONE = -1
SLACK = 1e-9
TOP = 3


class Instance(NamedTuple):
    """One call's data: E jobs, N nodes in C classes with at most G GPUs, K configurations (class, gpus), R scarce resources.

    `choice` int64[E, K]: configurations of a job, the `due_count[j]` that meet its due date by rising cost, then up to
    `fit_count[j]` by rising time. `chance` float64[E, 2]: cumulative probability of its first two, inversely to their cost.
    `time_s` float64[E, K]: run time of what is left there; `home` / `home_config`: node and configuration where it runs now (-1:
    none), whose time holds on that very node only, `move_s` more elsewhere. `slack_s` due date minus now. `penalty` cost of
    postponing, `moving` of not staying. `cost` float64[C, G + 1] per second with g GPUs in use, `power` watts likewise; `used`
    GPUs of a node in use by others. `first` int64[C, G + 1], `after` and `before` int64[N]: the lists of nodes by class and free
    GPUs. `demand` float64[E, R], `capacity` float64[N, R]: scarce resources; `watts` left under the power cap (inf: none).
    `whole`: energy is that of whole runs, not until each node's first end.
    """

    choice: Ints
    due_count: Ints
    fit_count: Ints
    chance: Floats
    time_s: Floats
    home: Ints
    home_config: Ints
    move_s: Floats
    weight: Floats
    slack_s: Floats
    penalty: Floats
    moving: Floats
    gpus_min: Ints
    config_class: Ints
    config_gpus: Ints
    cost: Floats
    power: Floats
    node_class: Ints
    free: Ints
    used: Ints
    first: Ints
    after: Ints
    before: Ints
    demand: Floats
    capacity: Floats
    watts: float
    whole: int


class State(NamedTuple):
    """What one construction changes: free GPUs, lists and resources as in `Instance`, GPUs `busy`, seconds to the first
    end (or GPU seconds, `Instance.whole`) as `span` of each node, and in order what was placed: (job, node, config)."""

    free: Ints
    first: Ints
    after: Ints
    before: Ints
    capacity: Floats
    busy: Ints
    span: Floats
    job: Ints
    node: Ints
    config: Ints


def new_state(data: Instance) -> State:
    """Room for a construction."""
    nodes, jobs = data.free.size, data.home.size
    lists = np.zeros_like(data.first), np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    placed = np.zeros(jobs, np.int64), np.zeros(jobs, np.int64), np.zeros(jobs, np.int64)
    return State(
        np.zeros(nodes, np.int64), *lists, np.zeros_like(data.capacity), np.zeros(nodes, np.int64), np.zeros(nodes), *placed
    )


@compiled
def reset(data: Instance, state: State) -> int:
    """Empty the nodes; the GPUs free in all. Loops, because whole-array assignment takes seconds to compile."""
    free, after, before, busy, span = state.free, state.after, state.before, state.busy, state.span
    total = 0
    for n in range(data.free.size):
        total += data.free[n]
        free[n] = data.free[n]
        after[n] = data.after[n]
        before[n] = data.before[n]
        busy[n] = data.used[n]
        span[n] = 0.0
        for r in range(data.capacity.shape[1]):
            state.capacity[n, r] = data.capacity[n, r]
    for c in range(data.first.shape[0]):
        for left in range(data.first.shape[1]):
            state.first[c, left] = data.first[c, left]
    return total


@compiled
def draw(rng: Ints) -> float:
    """A number in [0, 1) from a 32-bit xorshift (Marsaglia 2003) kept in rng[0], which is never 0."""
    x = rng[0]
    x ^= (x << 13) & 0xFFFFFFFF
    x ^= x >> 17
    x ^= (x << 5) & 0xFFFFFFFF
    rng[0] = x
    return float(x / 4294967296.0)


@compiled
def swaps(weight: Floats, a: int, b: int, mode: int, swap: float, rng: Ints) -> bool:
    """Whether b goes before its neighbour a: the likelier the lighter a is."""
    if mode == CODED:
        return draw(rng) < (swap if weight[a] < weight[b] else 1.0 - swap)
    both = weight[a] + weight[b]
    return draw(rng) < swap * (weight[b] / both if both > 0.0 else 0.5)


@compiled
def pick(chance: Floats, j: int, count: int, mode: int, rate: float, alpha: float, rng: Ints) -> int:
    """Rank of the configuration to try first: 0 the cheapest in time, or with probability `rate` one of the cheap ones."""
    if count < 2 or rate <= 0.0 or (rate < 1.0 and draw(rng) >= rate):
        return 0
    if mode == CODED:
        return int(draw(rng) * max(1.0, np.floor(alpha * count + 0.5)))
    u = draw(rng)
    if u < chance[j, 0]:
        return 0
    return 1 if u < chance[j, 1] or count < TOP else 2


@compiled
def extra_watts(power: Floats, c: int, busy: int, gpus: int) -> float:
    """Watts that so many GPUs more need on a node of class c with `busy` in use; a closed node needs its idle watts too."""
    return float(power[c, busy + gpus] - (power[c, busy] if busy > 0 else 0.0))


@compiled
def fits(demand: Floats, capacity: Floats, power: Floats, busy: Ints, watts: float, j: int, n: int, c: int, gpus: int) -> bool:
    """Whether node n, which has the GPUs, also has the scarce resources and the watts for job j."""
    for r in range(demand.shape[1]):
        if demand[j, r] > capacity[n, r] + SLACK:
            return False
    return bool(watts == np.inf or extra_watts(power, c, busy[n], gpus) <= watts + SLACK)


@compiled
def relink(first: Ints, after: Ints, before: Ints, free: Ints, n: int, c: int, gpus: int) -> None:
    """Move node n of class c to the list of nodes with `gpus` fewer free."""
    previous, following = before[n], after[n]
    if previous == NONE:
        first[c, free[n]] = following
    else:
        after[previous] = following
    if following != NONE:
        before[following] = previous
    left = free[n] - gpus
    head = first[c, left]
    free[n] = left
    first[c, left] = n
    after[n] = head
    before[n] = NONE
    if head != NONE:
        before[head] = n


@compiled
def exhausted(first: Ints, least: Ints, at: int, need_carried: int) -> bool:
    """Whether no job from place `at` of the queue on, nor the one carried, can find enough GPUs on any one node."""
    for c in range(first.shape[0]):
        for left in range(min(least[c, at], need_carried), first.shape[1]):
            if first[c, left] != NONE:
                return False
    return True


@compiled
def find(data: Instance, state: State, watts: float, j: int, k: int) -> int:
    """The node for job j in configuration k where resources or watts are scarce: as in `construct`, but each is checked."""
    c, gpus = data.config_class[k], data.config_gpus[k]
    home = data.home[j]
    at_home = k == data.home_config[j] and state.free[home] >= gpus
    if at_home and fits(data.demand, state.capacity, data.power, state.busy, watts, j, home, c, gpus):
        return int(home)
    for left in range(gpus, state.first.shape[1]):
        n = state.first[c, left]
        while n != NONE:
            if fits(data.demand, state.capacity, data.power, state.busy, watts, j, n, c, gpus):
                return int(n)
            n = state.after[n]
    return NONE


@compiled
def take(data: Instance, state: State, watts: float, j: int, n: int, c: int, gpus: int) -> float:
    """Take the scarce resources; the watts left."""
    for r in range(data.demand.shape[1]):
        state.capacity[n, r] -= data.demand[j, r]
    return watts - extra_watts(data.power, c, state.busy[n], gpus) if watts != np.inf else watts


@compiled
def construct(
    data: Instance, state: State, order: Ints, least: Ints, mode: int, rate: float, swap: float, alpha: float, rng: Ints
) -> tuple[float, int]:
    """One greedy construction over the queue `order`: (f without the total postponement cost, jobs placed).

    rate = swap = 0: deterministic. A job tries the configuration picked, then the others by rank; its own node first if it runs
    there just so, else the node with the fewest GPUs that suffice.
    """
    free, first, after, before, busy, span = state.free, state.first, state.after, state.before, state.busy, state.span
    choice, time_s, weight, home_config = data.choice, data.time_s, data.weight, data.home_config
    config_class, config_gpus = data.config_class, data.config_gpus
    scarce, sizes, watts = data.demand.shape[1] > 0 or data.watts != np.inf, first.shape[1], data.watts
    total = reset(data, state)
    cost, taken, at, carried = 0.0, 0, 0, NONE
    while total > 0 and (at < order.size or carried != NONE):
        j = carried
        carried = NONE
        if j == NONE:
            j = order[at]
            at += 1
        if swap > 0.0 and at < order.size and swaps(weight, j, order[at], mode, swap, rng):
            carried = j
            j = order[at]
            at += 1
        rank = pick(data.chance, j, data.due_count[j], mode, rate, alpha, rng)
        n, k, i = NONE, choice[j, rank], -1
        while i < data.fit_count[j]:
            if i >= 0:
                k = choice[j, i]
            c, gpus = config_class[k], config_gpus[k]
            if scarce:
                n = find(data, state, watts, j, k)
            elif k == home_config[j] and free[data.home[j]] >= gpus:
                n = data.home[j]
            else:
                for left in range(gpus, sizes):
                    n = first[c, left]
                    if n != NONE:
                        break
            if n != NONE:
                break
            i += 1
        if n == NONE:
            if exhausted(first, least, at, sizes if carried == NONE else data.gpus_min[carried]):
                break
            continue
        run_s = time_s[j, k]
        if k == home_config[j] and n != data.home[j]:
            run_s += data.move_s[j]
        if scarce:
            watts = take(data, state, watts, j, n, c, gpus)
        if data.whole:
            span[n] += run_s * gpus
        elif busy[n] == data.used[n] or run_s < span[n]:
            span[n] = run_s
        relink(first, after, before, free, n, c, gpus)
        busy[n] += gpus
        total -= gpus
        state.job[taken], state.node[taken], state.config[taken] = j, n, k
        taken += 1
        late = run_s - data.slack_s[j]
        cost += (weight[j] * late if late > 0.0 else 0.0) - data.penalty[j]
        if k != home_config[j] or n != data.home[j]:
            cost += data.moving[j]
    return cost + running_cost(data, state), taken


@compiled
def running_cost(data: Instance, state: State) -> float:
    """Energy: each open node at c[n, used] until its first job ends, or for the GPU seconds of its whole runs."""
    cost = 0.0
    for n in range(data.free.size):
        used = data.free[n] - state.free[n]
        if used > 0:
            of_node = data.cost[data.node_class[n], used] * state.span[n]
            cost += of_node / used if data.whole else of_node
    return cost


@compiled
def improve(
    data: Instance,
    state: State,
    orders: Ints,
    least: Ints,
    mode: int,
    iterations: int,
    rate: float,
    swap: float,
    alpha: float,
    rng: Ints,
    node: Ints,
    config: Ints,
) -> tuple[float, float]:
    """Deterministic runs over every row of `orders`, then randomised ones around the first; see `search`."""
    best, first = np.inf, np.inf
    for i in range(orders.shape[0] + iterations):
        if i < orders.shape[0]:
            cost, placed = construct(data, state, orders[i], least[i], mode, 0.0, 0.0, alpha, rng)
        else:
            scale = 1.0 if mode == CODED else 1.0 / (1 << (i % 8))
            cost, placed = construct(data, state, orders[0], least[0], mode, rate * scale, swap * scale, alpha, rng)
        if i == 0:
            first = cost
        if cost < best:
            best = cost
            for j in range(node.size):
                node[j] = NONE
            for taken in range(placed):
                node[state.job[taken]] = state.node[taken]
                config[state.job[taken]] = state.config[taken]
    return best, first


def search(
    data: Instance,
    orders: Ints,
    least: Ints,
    mode: int,
    iterations: int,
    rate: float,
    swap: float,
    alpha: float,
    seed: int,
) -> tuple[Ints, Ints, float, float]:
    """The best of the deterministic runs over every row of `orders` and of `iterations` randomised ones around the first row.

    Returns (node, configuration) of every job, -1 where it is postponed, then f of the best and of the first deterministic run,
    both without the total postponement cost. `least` int64[S, C, E + 1]: fewest GPUs that a job from a place in the queue on
    could use on a node of a class. `seed` in 1 .. 2**32 - 1.
    """
    node = np.full(data.home.size, NONE, np.int64)
    config = np.full(data.home.size, NONE, np.int64)
    rng = np.array([seed], np.int64)
    best, first = improve(data, new_state(data), orders, least, mode, iterations, rate, swap, alpha, rng, node, config)
    return node, config, best, first
