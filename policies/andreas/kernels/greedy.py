"""ANDREAS' Randomized Greedy (Algorithm 1) as a compiled kernel over dense arrays.

Nodes of one class with equally many free GPUs form one list, so that the best fit is the head of
the first list with enough. An iteration costs O(GPUs): neighbours in the queue are swapped while it
is read, reading stops when no remaining job fits, and the postponement cost is the total minus that
of the placed jobs.

Small kernels take arrays one by one: passing a tuple costs ten times more.
"""

import numpy as np

from policies.andreas.kernels.arrays import TOP, Instance, State, new_state, reset
from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import NONE, draw, extra_watts, fits
from policies.placement.kernels import compiled

CODED = 0
"""Mode: as the authors' program does it."""

PAPER = 1
"""Mode: as published."""


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
    """Return the best of deterministic runs over `orders` and randomised ones around the first.

    Values: node and configuration of every job, int64[E], -1 where postponed; then f (`Objective`)
    of the best and of the first run, both less the cost of postponing all jobs.

    `orders` int64[S, E]: queues of jobs. `least` int64[S, C, E + 1]: fewest GPUs usable by a job
    from a position of a queue on. `rate`, `swap` in [0, 1]: see `pick_rank` and `swaps`. `alpha`:
    part of the configurations in time to draw from in mode coded. `seed` in 1 .. 2**32 - 1.
    """
    # Arrays are made here: made in compiled code they would take twice the time.
    node = np.full_like(data.current_node, NONE)
    config = np.full_like(data.current_node, NONE)
    state = new_state(data)
    rng = np.array([seed], np.int64)
    best, first = improve(
        data, state, orders, least, mode, iterations, rate, swap, alpha, rng, node, config
    )
    return node, config, best, first


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
    """Do the constructions of `search`; the best one is left in `node` and `config`.

    Returns f of the best and of the first one, as `search`. `rng` int64[1]: state of the random
    numbers.
    """
    best = np.inf
    first = np.inf
    for i in range(orders.shape[0] + iterations):
        # First every order once, without randomness; then the first order with it. In mode paper
        # the intensity of the randomness is halved seven times, then begins anew.
        if i < orders.shape[0]:
            order = i
            scale = 0.0
        elif mode == CODED:
            order = 0
            scale = 1.0
        else:
            order = 0
            scale = 1.0 / (1 << (i % 8))
        cost, placed = construct(
            data, state, orders[order], least[order], mode, rate * scale, swap * scale, alpha, rng
        )
        if i == 0:
            first = cost
        if cost < best:
            best = cost
            for j in range(node.size):
                node[j] = NONE
            for position in range(placed):
                node[state.job[position]] = state.node[position]
                config[state.job[position]] = state.config[position]
    return best, first


@compiled
def construct(
    data: Instance,
    state: State,
    order: Ints,
    least: Ints,
    mode: int,
    rate: float,
    swap: float,
    alpha: float,
    rng: Ints,
) -> tuple[float, int]:
    """Construct once over the queue `order`; return (f, number of placed jobs).

    f is less the cost of postponing all jobs. Without `rate` and `swap` the construction is
    deterministic. A job tries a configuration that is drawn, then the others in its order of
    preference: on its own node if it runs there so, else by best fit. In mode paper a job may swap
    with several neighbours. In mode coded only the pairs (1, 2), (3, 4) and so on swap, and a
    configuration stands for all of its GPU type: see `find_alike`.
    """
    # Locals, because reading a field of a tuple in a loop costs more than the work itself.
    free, first, after, before = state.free, state.first, state.after, state.before
    busy, span = state.busy, state.span
    choice, weight = data.choice, data.weight
    current_node, current_config = data.current_node, data.current_config
    config_class, config_gpus, alike = data.config_class, data.config_gpus, data.alike
    chance, due_count, fit_count, time_s = data.chance, data.due_count, data.fit_count, data.time_s
    is_scarce = data.demand.shape[1] > 0 or data.watts != np.inf
    watts = data.watts

    free_gpus = reset(data, state)
    cost = 0.0
    placed = 0
    position = 0  # in the queue, of the next job to read
    carried = NONE  # a job that was read and then overtaken by its neighbour: it comes next
    while free_gpus > 0 and (position < order.size or carried != NONE):
        # 1. The next job: the carried one or the next of the queue; its neighbour may go first.
        may_swap = swap > 0.0 and (mode != CODED or (carried == NONE and position % 2 == 0))
        j = carried
        carried = NONE
        if j == NONE:
            j = order[position]
            position += 1
        if may_swap and position < order.size:
            neighbour = order[position]
            if swaps(weight, j, neighbour, mode, swap, rng):
                carried = j
                j = neighbour
                position += 1

        # 2. Its configuration and node: the drawn configuration first, then all others in order.
        drawn = choice[j, pick_rank(chance, j, due_count[j], mode, rate, alpha, rng)]
        n = NONE
        k = drawn
        for attempt in range(fit_count[j] + 1 if fit_count[j] > 0 else 0):
            if attempt > 0:
                k = choice[j, attempt - 1]
                if k == drawn:
                    continue
            if mode == CODED and is_scarce:
                n, k = find_alike_where_scarce(data, state, watts, j, k)
            elif mode == CODED:
                n, k = find_alike(
                    alike,
                    config_class,
                    time_s,
                    first,
                    free,
                    busy,
                    config_gpus[k],
                    current_node[j],
                    current_config[j],
                    j,
                    k,
                )
            elif is_scarce:
                n = find_where_scarce(data, state, watts, j, k)
            elif k == current_config[j] and free[current_node[j]] >= config_gpus[k]:
                n = current_node[j]
            else:
                n = best_fit(first, config_class[k], config_gpus[k])
            if n != NONE:
                break

        # 3. No node: the job is postponed, and all others too if none of them fits either.
        if n == NONE:
            carried_gpus = first.shape[1] if carried == NONE else data.gpus_min[carried]
            if nothing_fits(first, least, position, carried_gpus):
                break
            continue

        # 4. Place it. A move in the same configuration takes longer than staying.
        gpus = config_gpus[k]
        stays = k == current_config[j] and n == current_node[j]
        run_s = data.time_s[j, k]
        priced_s = data.priced_s[j, k]
        if k == current_config[j] and not stays:
            run_s += data.move_s[j]
            priced_s += data.priced_move_s[j]
        if is_scarce:
            watts = take_resources(data, state, watts, j, n, config_class[k], gpus)
        is_first_on_node = busy[n] == data.used[n]
        extend_span(span, n, priced_s, gpus, is_first_on_node, data.whole)
        relink(first, after, before, free, n, config_class[k], gpus)
        busy[n] += gpus
        free_gpus -= gpus
        state.job[placed] = j
        state.node[placed] = n
        state.config[placed] = k
        placed += 1

        # 5. Its tardiness and its move cost something; its postponement is saved.
        late_s = run_s - data.slack_s[j]
        tardiness = weight[j] * late_s if late_s > 0.0 else 0.0
        move = 0.0 if stays else data.moving[j]
        cost += tardiness + move - data.penalty[j]
    return cost + energy_cost(data, state), placed


@compiled
def swaps(weight: Floats, a: int, b: int, mode: int, swap: float, rng: Ints) -> bool:
    """Draw whether job b goes before its neighbour a: the likelier the lighter a is."""
    if mode == CODED:
        probability = swap if weight[a] < weight[b] else 1.0 - swap
        return draw(rng) < probability
    both = weight[a] + weight[b]
    part_of_b = weight[b] / both if both > 0.0 else 0.5
    return draw(rng) < swap * part_of_b


@compiled
def pick_rank(
    chance: Floats, j: int, count: int, mode: int, rate: float, alpha: float, rng: Ints
) -> int:
    """Draw the rank of the configuration that job j tries first, of `count` in time.

    It is 0, the cheapest; with probability `rate` another cheap one.
    """
    if count < 2 or rate <= 0.0 or (rate < 1.0 and draw(rng) >= rate):
        return 0
    if mode == CODED:
        return int(draw(rng) * max(1.0, np.floor(alpha * count + 0.5)))
    u = draw(rng)
    if u < chance[j, 0]:
        return 0
    if u < chance[j, 1] or count < TOP:
        return 1
    return 2


@compiled
def best_fit(first: Ints, c: int, gpus: int) -> int:
    """Return the node of class c with the fewest free GPUs that suffice, or -1."""
    for free in range(gpus, first.shape[1]):
        if first[c, free] != NONE:
            return int(first[c, free])
    return NONE


@compiled
def find_where_scarce(data: Instance, state: State, watts: float, j: int, k: int) -> int:
    """Return a node for job j in configuration k if resources or watts are scarce, or -1.

    Its own node if it runs there so, else the best fit that has them.
    """
    c = data.config_class[k]
    gpus = data.config_gpus[k]
    demand, capacity, power, busy = data.demand, state.capacity, data.power, state.busy
    current_node = data.current_node[j]
    may_stay = k == data.current_config[j] and state.free[current_node] >= gpus
    if may_stay and fits(demand, capacity, power, busy, watts, j, current_node, c, gpus):
        return int(current_node)
    for free in range(gpus, state.first.shape[1]):
        n = state.first[c, free]
        while n != NONE:
            if fits(demand, capacity, power, busy, watts, j, n, c, gpus):
                return int(n)
            n = state.after[n]
    return NONE


@compiled
def fullness_rank(free: int, busy: int, most: int) -> int:
    """Return a rank by which nodes are filled: those in use by best fit, then the largest empty.

    `free` and `busy`: GPUs of the node; `most`: more than any node has.
    """
    return free if busy > 0 else 2 * most - free


@compiled
def find_alike(
    alike: Ints,
    config_class: Ints,
    time_s: Floats,
    first: Ints,
    free: Ints,
    busy: Ints,
    gpus: int,
    current_node: int,
    current_config: int,
    j: int,
    k: int,
) -> tuple[int, int]:
    """Return node and configuration for job j among those like k, whatever their class.

    The own node if it runs there so, else the node of the least `fullness_rank`; (-1, k) if none.
    """
    best_node = NONE
    best_config = k
    best_rank = 0
    most = first.shape[1]
    for other in range(alike.size):
        if alike[other] != alike[k] or time_s[j, other] == np.inf:
            continue
        if other == current_config and free[current_node] >= gpus:
            return int(current_node), int(other)
        n = best_fit(first, config_class[other], gpus)
        if n != NONE:
            rank = fullness_rank(free[n], busy[n], most)
            if best_node == NONE or rank < best_rank:
                best_node = n
                best_config = other
                best_rank = rank
    return int(best_node), int(best_config)


@compiled
def find_alike_where_scarce(
    data: Instance, state: State, watts: float, j: int, k: int
) -> tuple[int, int]:
    """Do the same as `find_alike` where resources or watts are scarce."""
    best_node = NONE
    best_config = k
    best_rank = 0
    most = state.first.shape[1]
    for other in range(data.alike.size):
        if data.alike[other] != data.alike[k] or data.time_s[j, other] == np.inf:
            continue
        n = find_where_scarce(data, state, watts, j, other)
        if n != NONE and n == data.current_node[j] and other == data.current_config[j]:
            return int(n), int(other)
        if n != NONE:
            rank = fullness_rank(state.free[n], state.busy[n], most)
            if best_node == NONE or rank < best_rank:
                best_node = n
                best_config = other
                best_rank = rank
    return int(best_node), int(best_config)


@compiled
def nothing_fits(first: Ints, least: Ints, position: int, carried_gpus: int) -> bool:
    """Return True if no job of the queue from `position` on, nor the carried one, fits anywhere.

    `carried_gpus`: fewest GPUs of the carried job; without one, more than any node has.
    """
    for c in range(first.shape[0]):
        for free in range(min(least[c, position], carried_gpus), first.shape[1]):
            if first[c, free] != NONE:
                return False
    return True


@compiled
def take_resources(
    data: Instance, state: State, watts: float, j: int, n: int, c: int, gpus: int
) -> float:
    """Take what job j needs on node n of class c; return the watts left of `watts`."""
    for r in range(data.demand.shape[1]):
        state.capacity[n, r] -= data.demand[j, r]
    if watts == np.inf:
        return watts
    return watts - extra_watts(data.power, c, state.busy[n], gpus)


@compiled
def extend_span(
    span: Floats, n: int, priced_s: float, gpus: int, is_first_on_node: bool, whole: int
) -> None:
    """Count a run on node n: its priced GPU seconds, or its end if it is the node's first."""
    if whole:
        span[n] += priced_s * gpus
    elif is_first_on_node or priced_s < span[n]:
        span[n] = priced_s


@compiled
def relink(first: Ints, after: Ints, before: Ints, free: Ints, n: int, c: int, gpus: int) -> None:
    """Take `gpus` free GPUs of node n of class c: it moves to the head of another list."""
    # 1. Out of its list.
    previous = before[n]
    following = after[n]
    if previous == NONE:
        first[c, free[n]] = following
    else:
        after[previous] = following
    if following != NONE:
        before[following] = previous

    # 2. To the head of the list of nodes with as many free GPUs as it has now.
    free[n] -= gpus
    head = first[c, free[n]]
    first[c, free[n]] = n
    after[n] = head
    before[n] = NONE
    if head != NONE:
        before[head] = n


@compiled
def energy_cost(data: Instance, state: State) -> float:
    """Return the energy cost of all nodes in use by placed jobs.

    A node costs c[n, used] until its first end or, if `whole`, for its priced GPU seconds.
    """
    cost = 0.0
    for n in range(data.free.size):
        used = data.free[n] - state.free[n]
        if used > 0:
            of_node = data.cost[data.node_class[n], used] * state.span[n]
            cost += of_node / used if data.whole else of_node
    return cost
