"""ANDREAS' Randomized Greedy (Algorithm 1) as a compiled kernel over dense arrays.

Nodes of one class with f free GPUs form one list, so that best fit is the head of the first list
with enough. An iteration costs O(GPUs): neighbours are swapped lazily, reading stops when no
remaining job fits, and the postponement cost is the total minus that of the assigned jobs.
"""

import numpy as np

from policies.andreas.kernels.arrays import TOP, Instance, State, new_state, reset
from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import NONE, draw, extra_watts, fits
from policies.placement.kernels import compiled

CODED = 0
PAPER = 1


@compiled
def swaps(weight: Floats, a: int, b: int, mode: int, swap: float, rng: Ints) -> bool:
    """Draw whether b goes before its neighbour a: the likelier the lighter a is."""
    if mode == CODED:
        return draw(rng) < (swap if weight[a] < weight[b] else 1.0 - swap)
    both = weight[a] + weight[b]
    return draw(rng) < swap * (weight[b] / both if both > 0.0 else 0.5)


@compiled
def pick(
    chance: Floats, j: int, count: int, mode: int, rate: float, alpha: float, rng: Ints
) -> int:
    """Draw the rank of the configuration to try: 0 the cheapest, or by `rate` another cheap one."""
    if count < 2 or rate <= 0.0 or (rate < 1.0 and draw(rng) >= rate):
        return 0
    if mode == CODED:
        return int(draw(rng) * max(1.0, np.floor(alpha * count + 0.5)))
    u = draw(rng)
    if u < chance[j, 0]:
        return 0
    return 1 if u < chance[j, 1] or count < TOP else 2


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
    """Return True if no job from place `at` on, nor the one carried, fits on any node."""
    for c in range(first.shape[0]):
        for left in range(min(least[c, at], need_carried), first.shape[1]):
            if first[c, left] != NONE:
                return False
    return True


@compiled
def best_fit(first: Ints, c: int, gpus: int) -> int:
    """Node of class c with the fewest free GPUs that suffice, or -1."""
    for left in range(gpus, first.shape[1]):
        if first[c, left] != NONE:
            return int(first[c, left])
    return NONE


@compiled
def find_roomy(data: Instance, state: State, watts: float, j: int, k: int) -> int:
    """Node for job j in configuration k if resources or watts are scarce: own, best fit."""
    c, gpus = data.config_class[k], data.config_gpus[k]
    current_node = data.current_node[j]
    stays = k == data.current_config[j] and state.free[current_node] >= gpus
    if stays and fits(
        data.demand, state.capacity, data.power, state.busy, watts, j, current_node, c, gpus
    ):
        return int(current_node)
    for left in range(gpus, state.first.shape[1]):
        n = state.first[c, left]
        while n != NONE:
            if fits(data.demand, state.capacity, data.power, state.busy, watts, j, n, c, gpus):
                return int(n)
            n = state.after[n]
    return NONE


@compiled
def occupancy(free: int, busy: int, most: int) -> int:
    """Rank of a node: open ones by best fit, then closed ones, the largest first."""
    return free if busy > 0 else 2 * most - free


@compiled
def find_alike(
    alike: Ints, config_class: Ints, time_s: Floats, first: Ints, free: Ints, busy: Ints,
    gpus: int, current_node: int, current_config: int, j: int, k: int,
) -> tuple[int, int]:  # fmt: skip
    """Node and configuration for job j among those like k, whatever their class, or -1.

    Own node, then used ones by best fit, then the closed one with the most GPUs. Arrays are passed
    one by one: tuples cost ten times more.
    """
    found, config, least, most = NONE, k, 0, first.shape[1]
    for other in range(alike.size):
        if alike[other] != alike[k] or time_s[j, other] == np.inf:
            continue
        if other == current_config and free[current_node] >= gpus:
            return int(current_node), int(other)
        n = best_fit(first, config_class[other], gpus)
        if n != NONE:
            left = occupancy(free[n], busy[n], most)
            if found == NONE or left < least:
                found, config, least = n, other, left
    return int(found), int(config)


@compiled
def find_alike_roomy(data: Instance, state: State, watts: float, j: int, k: int) -> tuple[int, int]:
    """`find_alike` where resources or watts are scarce."""
    found, config, least, most = NONE, k, 0, state.first.shape[1]
    for other in range(data.alike.size):
        if data.alike[other] != data.alike[k] or data.time_s[j, other] == np.inf:
            continue
        n = find_roomy(data, state, watts, j, other)
        if n != NONE and n == data.current_node[j] and other == data.current_config[j]:
            return int(n), int(other)
        if n != NONE:
            left = occupancy(state.free[n], state.busy[n], most)
            if found == NONE or left < least:
                found, config, least = n, other, left
    return int(found), int(config)


@compiled
def take(data: Instance, state: State, watts: float, j: int, n: int, c: int, gpus: int) -> float:
    """Take the scarce resources and return the watts left."""
    for r in range(data.demand.shape[1]):
        state.capacity[n, r] -= data.demand[j, r]
    return watts - extra_watts(data.power, c, state.busy[n], gpus) if watts != np.inf else watts


@compiled
def stretch(span: Floats, n: int, priced_s: float, gpus: int, opens: bool, whole: int) -> None:
    """Add a run to its node: priced GPU seconds, or the priced time of the first end."""
    if whole:
        span[n] += priced_s * gpus
    elif opens or priced_s < span[n]:
        span[n] = priced_s


@compiled
def construct(
    data: Instance, state: State, order: Ints, least: Ints, mode: int, rate: float, swap: float,
    alpha: float, rng: Ints,
) -> tuple[float, int]:  # fmt: skip
    """Construct once over the queue `order`: (f without the total postponement cost, jobs placed).

    rate = swap = 0: deterministic. A job tries the picked configuration, then the others by rank,
    on its own node if it runs there so, else by best fit. In mode paper a job may swap with several
    neighbours; in mode coded only pairs (1, 2), (3, 4) ... swap, and a configuration is (GPU type,
    GPUs): see `find_alike`.
    """
    free, first, after, before = state.free, state.first, state.after, state.before
    busy, span = state.busy, state.span
    choice, weight = data.choice, data.weight
    current_node, current_config = data.current_node, data.current_config
    config_class, config_gpus, alike = data.config_class, data.config_gpus, data.alike
    chance, due_count, fit_count, time_s = data.chance, data.due_count, data.fit_count, data.time_s
    scarce, watts = data.demand.shape[1] > 0 or data.watts != np.inf, data.watts
    total, cost, taken, at, carried = reset(data, state), 0.0, 0, 0, NONE
    while total > 0 and (at < order.size or carried != NONE):
        may_swap = swap > 0.0 and (mode != CODED or (carried == NONE and at % 2 == 0))
        j, carried = carried, NONE
        if j == NONE:
            j = order[at]
            at += 1
        if may_swap and at < order.size and swaps(weight, j, order[at], mode, swap, rng):
            j, carried = order[at], j
            at += 1
        picked = choice[j, pick(chance, j, due_count[j], mode, rate, alpha, rng)]
        n, k = NONE, picked
        for i in range(-1 if fit_count[j] > 0 else 0, fit_count[j]):
            if i >= 0:
                k = choice[j, i]
                if k == picked:
                    continue
            if mode == CODED and scarce:
                n, k = find_alike_roomy(data, state, watts, j, k)
            elif mode == CODED:
                n, k = find_alike(
                    alike, config_class, time_s, first, free, busy,
                    config_gpus[k], current_node[j], current_config[j], j, k,
                )  # fmt: skip
            elif scarce:
                n = find_roomy(data, state, watts, j, k)
            elif k == current_config[j] and free[current_node[j]] >= config_gpus[k]:
                n = current_node[j]
            else:
                n = best_fit(first, config_class[k], config_gpus[k])
            if n != NONE:
                break
        if n == NONE:
            need = first.shape[1] if carried == NONE else data.gpus_min[carried]
            if exhausted(first, least, at, need):
                break
            continue
        gpus, stays = config_gpus[k], k == current_config[j] and n == current_node[j]
        run_s, priced_s = data.time_s[j, k], data.priced_s[j, k]
        if k == current_config[j] and n != current_node[j]:
            run_s += data.move_s[j]
            priced_s += data.priced_move_s[j]
        if scarce:
            watts = take(data, state, watts, j, n, config_class[k], gpus)
        stretch(span, n, priced_s, gpus, busy[n] == data.used[n], data.whole)
        relink(first, after, before, free, n, config_class[k], gpus)
        busy[n] += gpus
        total -= gpus
        state.job[taken], state.node[taken], state.config[taken] = j, n, k
        taken += 1
        late = run_s - data.slack_s[j]
        tardiness = weight[j] * late if late > 0.0 else 0.0
        cost += tardiness + (0.0 if stays else data.moving[j]) - data.penalty[j]
    return cost + running_cost(data, state), taken


@compiled
def running_cost(data: Instance, state: State) -> float:
    """Energy cost: each open node at c[n, used] until its first end, or for its whole runs."""
    cost = 0.0
    for n in range(data.free.size):
        used = data.free[n] - state.free[n]
        if used > 0:
            of_node = data.cost[data.node_class[n], used] * state.span[n]
            cost += of_node / used if data.whole else of_node
    return cost


@compiled
def improve(
    data: Instance, state: State, orders: Ints, least: Ints, mode: int, iterations: int,
    rate: float, swap: float, alpha: float, rng: Ints, node: Ints, config: Ints,
) -> tuple[float, float]:  # fmt: skip
    """Run deterministically over `orders`, then randomised around the first: (best f, first f)."""
    best, first = np.inf, np.inf
    for i in range(orders.shape[0] + iterations):
        order, scale = i, 0.0
        if i >= orders.shape[0]:
            order, scale = 0, 1.0 if mode == CODED else 1.0 / (1 << (i % 8))
        cost, placed = construct(
            data, state, orders[order], least[order], mode, rate * scale, swap * scale, alpha, rng
        )
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
    data: Instance, orders: Ints, least: Ints, mode: int, iterations: int, rate: float,
    swap: float, alpha: float, seed: int,
) -> tuple[Ints, Ints, float, float]:  # fmt: skip
    """Return the best of deterministic runs over `orders` and randomised ones around the first.

    Values: (node, configuration) of every job, -1 where postponed, then f of the best and of the
    first run without the total postponement cost. `least` int64[S, C, E + 1]: fewest GPUs usable by
    a job from a place in the queue on. `seed` in 1 .. 2**32 - 1. Arrays made in compiled code would
    take twice the time.
    """
    node, config = np.full_like(data.current_node, NONE), np.full_like(data.current_node, NONE)
    state, rng = new_state(data), np.array([seed], np.int64)
    best, first = improve(
        data, state, orders, least, mode, iterations, rate, swap, alpha, rng, node, config
    )
    return node, config, best, first
