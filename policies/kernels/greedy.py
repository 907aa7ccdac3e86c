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
    postponing. `cost` float64[C, G + 1] per second with g GPUs in use, `power` watts likewise; `used` GPUs of a node in use by
    others. `demand` float64[E, R], `capacity` float64[N, R], `watts` left under the power cap (inf: none).
    `first` int64[C, G + 1], `after` and `before` int64[N]: the lists of nodes by class and free GPUs.
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


class State(NamedTuple):
    """What one construction changes; reset before each. `totals` = (free GPUs, watts left, taken count)."""

    free: Ints
    class_free: Ints
    first: Ints
    after: Ints
    before: Ints
    capacity: Floats
    training: Ints
    ends_s: Floats
    totals: Floats
    job: Ints
    node: Ints
    config: Ints


@compiled
def new_state(instance: Instance) -> State:
    """Room for a construction."""
    nodes, jobs = instance.free.size, instance.home.size
    return State(
        np.zeros(nodes, np.int64),
        np.zeros(instance.first.shape[0], np.int64),
        np.zeros_like(instance.first),
        np.zeros(nodes, np.int64),
        np.zeros(nodes, np.int64),
        np.zeros_like(instance.capacity),
        np.zeros(nodes, np.int64),
        np.zeros(nodes, np.float64),
        np.zeros(3, np.float64),
        np.zeros(jobs, np.int64),
        np.zeros(jobs, np.int64),
        np.zeros(jobs, np.int64),
    )


@compiled
def reset(instance: Instance, state: State) -> None:
    """Empty the nodes."""
    state.free[:] = instance.free
    state.first[:] = instance.first
    state.after[:] = instance.after
    state.before[:] = instance.before
    state.capacity[:] = instance.capacity
    state.training[:] = 0
    state.class_free[:] = 0
    total = 0
    for n in range(instance.free.size):
        state.class_free[instance.node_class[n]] += instance.free[n]
        total += instance.free[n]
    state.totals[0] = total
    state.totals[1] = instance.watts
    state.totals[2] = 0.0


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
def extra_watts(instance: Instance, state: State, n: int, gpus: int) -> float:
    """Watts that so many GPUs more need on node n; a closed node needs its idle watts too."""
    c = instance.node_class[n]
    busy = instance.used[n] + state.training[n]
    before = instance.power[c, busy] if busy > 0 else 0.0
    return float(instance.power[c, busy + gpus] - before)


@compiled
def fits(instance: Instance, state: State, j: int, n: int, gpus: int) -> bool:
    """Whether node n has the GPUs, the scarce resources and the watts for job j."""
    if state.free[n] < gpus:
        return False
    for r in range(instance.demand.shape[1]):
        if instance.demand[j, r] > state.capacity[n, r] + SLACK:
            return False
    return bool(instance.watts == np.inf or extra_watts(instance, state, n, gpus) <= state.totals[1] + SLACK)


@compiled
def find(instance: Instance, state: State, j: int, k: int) -> int:
    """The node for job j in configuration k: where it runs already, else the one with the fewest GPUs left over, else -1."""
    c = instance.config_class[k]
    gpus = instance.config_gpus[k]
    if state.class_free[c] < gpus:
        return NONE
    if k == instance.home_config[j] and fits(instance, state, j, instance.home[j], gpus):
        return int(instance.home[j])
    for left in range(gpus, state.first.shape[1]):
        n = state.first[c, left]
        while n != NONE:
            if fits(instance, state, j, n, gpus):
                return int(n)
            n = state.after[n]
    return NONE


@compiled
def relink(instance: Instance, state: State, n: int, gpus: int) -> None:
    """Move node n to the list of nodes with `gpus` fewer free."""
    c = instance.node_class[n]
    before, after = state.before[n], state.after[n]
    if before == NONE:
        state.first[c, state.free[n]] = after
    else:
        state.after[before] = after
    if after != NONE:
        state.before[after] = before
    state.free[n] -= gpus
    head = state.first[c, state.free[n]]
    state.first[c, state.free[n]] = n
    state.after[n] = head
    state.before[n] = NONE
    if head != NONE:
        state.before[head] = n


@compiled
def assign(instance: Instance, state: State, j: int, k: int, n: int) -> float:
    """Give node n to job j in configuration k; the job's tardiness cost minus what postponing it would have cost."""
    gpus = instance.config_gpus[k]
    time_s = instance.time_s[j, k]
    if k == instance.home_config[j] and n != instance.home[j]:
        time_s += instance.move_s[j]
    if instance.watts != np.inf:
        state.totals[1] -= extra_watts(instance, state, n, gpus)
    for r in range(instance.demand.shape[1]):
        state.capacity[n, r] -= instance.demand[j, r]
    if state.training[n] == 0 or time_s < state.ends_s[n]:
        state.ends_s[n] = time_s
    relink(instance, state, n, gpus)
    state.training[n] += gpus
    state.class_free[instance.node_class[n]] -= gpus
    state.totals[0] -= gpus
    taken = int(state.totals[2])
    state.job[taken] = j
    state.node[taken] = n
    state.config[taken] = k
    state.totals[2] = taken + 1
    late = time_s - instance.slack_s[j]
    return float((instance.weight[j] * late if late > 0.0 else 0.0) - instance.penalty[j])


@compiled
def pick(instance: Instance, j: int, mode: int, rate: float, alpha: float, rng: Ints) -> int:
    """Rank of the configuration to try first: 0 the cheapest in time, or with probability `rate` one of the cheap ones."""
    count = instance.due_count[j]
    if count < 2 or rate <= 0.0 or draw(rng) >= rate:
        return 0
    if mode == CODED:
        return int(draw(rng) * max(1.0, np.floor(alpha * count + 0.5)))
    u = draw(rng)
    if u < instance.chance[j, 0]:
        return 0
    return 1 if u < instance.chance[j, 1] or count < TOP else 2


@compiled
def place(instance: Instance, state: State, j: int, rank: int) -> float:
    """Assign job j to its configuration of that rank, else to the first that fits; the change of cost, inf if none fits."""
    k = instance.choice[j, rank]
    n = find(instance, state, j, k)
    i = 0
    while n == NONE and i < instance.fit_count[j]:
        k = instance.choice[j, i]
        n = find(instance, state, j, k)
        i += 1
    return assign(instance, state, j, k, n) if n != NONE else np.inf


@compiled
def exhausted(instance: Instance, state: State, least: Ints, at: int, carried: int) -> bool:
    """Whether no job from position `at` of the queue on, nor the one carried, can find enough GPUs on any one node."""
    for c in range(state.first.shape[0]):
        need = least[c, at]
        if carried != NONE and instance.gpus_min[carried] < need:
            need = instance.gpus_min[carried]
        for left in range(need, state.first.shape[1]):
            if state.first[c, left] != NONE:
                return False
    return True


@compiled
def swaps(instance: Instance, a: int, b: int, mode: int, swap: float, rng: Ints) -> bool:
    """Whether b goes before its neighbour a: the likelier the lighter a is."""
    if mode == CODED:
        return draw(rng) < (swap if instance.weight[a] < instance.weight[b] else 1.0 - swap)
    both = instance.weight[a] + instance.weight[b]
    return draw(rng) < swap * (instance.weight[b] / both if both > 0.0 else 0.5)


@compiled
def construct(
    instance: Instance, state: State, order: Ints, least: Ints, mode: int, rate: float, swap: float, alpha: float, rng: Ints
) -> float:
    """One greedy construction over the queue `order`; f without the total postponement cost. rate = swap = 0: deterministic."""
    reset(instance, state)
    cost = 0.0
    at, carried = 0, NONE
    while state.totals[0] > 0.0 and (at < order.size or carried != NONE):
        j = carried
        carried = NONE
        if j == NONE:
            j = order[at]
            at += 1
        if swap > 0.0 and at < order.size and swaps(instance, j, order[at], mode, swap, rng):
            carried = j
            j = order[at]
            at += 1
        change = place(instance, state, j, pick(instance, j, mode, rate, alpha, rng))
        if change != np.inf:
            cost += change
        elif exhausted(instance, state, least, at, carried):
            break
    return cost + running_cost(instance, state)


@compiled
def running_cost(instance: Instance, state: State) -> float:
    """sum_n c[n, used] * t_first(n): each open node at its cost until its first job ends."""
    cost = 0.0
    for n in range(instance.free.size):
        if state.training[n] > 0:
            cost += instance.cost[instance.node_class[n], state.training[n]] * state.ends_s[n]
    return cost


@compiled
def search(
    instance: Instance,
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
    could use on a node of a class.
    """
    state = new_state(instance)
    rng = np.array([seed], np.int64)
    node = np.full(instance.home.size, NONE, np.int64)
    config = np.full(instance.home.size, NONE, np.int64)
    best, first = np.inf, np.inf
    for i in range(orders.shape[0] + iterations):
        s = i if i < orders.shape[0] else 0
        if i < orders.shape[0]:
            cost = construct(instance, state, orders[s], least[s], mode, 0.0, 0.0, alpha, rng)
        else:
            scale = 1.0 if mode == CODED else 1.0 / (1 << (i % 8))
            cost = construct(instance, state, orders[s], least[s], mode, rate * scale, swap * scale, alpha, rng)
        if i == 0:
            first = cost
        if cost < best:
            best = cost
            node[:] = NONE
            for taken in range(int(state.totals[2])):
                node[state.job[taken]] = state.node[taken]
                config[state.job[taken]] = state.config[taken]
    return node, config, best, first
