"""Local search for the least f (whole runs) around a solution, compiled.

Large neighbourhood search (destroy and repair, Shaw 1998), beyond the ANDREAS paper. A step removes
the jobs of one or two nodes, or a few jobs, then inserts these and some postponed ones by noisy
penalty where f grows least. A result is kept if f has not grown, and sometimes although it has; the
best solution never gets worse.
"""

from typing import NamedTuple

import numpy as np

from policies.andreas.kernels.arrays import Instance
from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import NONE, SLACK, copy, draw, extra_watts
from policies.placement.kernels import compiled

ONE_NODE, TWO_NODES = 0.35, 0.65
"""Cumulative probability of removing a node's jobs, or those of two nodes; else single jobs."""

MOST_SINGLE = 4
MOST_POOLED = 32
"""Most jobs that a step inserts; of more postponed ones it draws some."""

WARM = 4e-4
"""Initial fraction of |f| by which an accepted solution may be worse."""


class Standing(NamedTuple):
    """Solution as it is changed: `node` and `config` int64[E] (-1: postponed), then by node:

    GPUs in use, priced GPU seconds, and scarce resources left. `watts` float64[1]: left under the
    cap.
    """

    node: Ints
    config: Ints
    gpus: Ints
    span: Floats
    capacity: Floats
    watts: Floats


@compiled
def energy(data: Instance, n: int, gpus: int, span: float) -> float:
    """Cost of the runs on a node."""
    return float(data.cost[data.node_class[n], gpus] * span / gpus) if gpus > 0 else 0.0


@compiled
def own_cost(data: Instance, j: int, n: int, k: int) -> tuple[float, float]:
    """(f of a placed job without energy, less its postponement; priced GPU seconds)."""
    run_s, priced_s, cost = data.time_s[j, k], data.priced_s[j, k], -data.penalty[j]
    if k != data.current_config[j] or n != data.current_node[j]:
        cost += data.moving[j]
        if k == data.current_config[j]:
            run_s += data.move_s[j]
            priced_s += data.priced_move_s[j]
    late = run_s - data.slack_s[j]
    return cost + (data.weight[j] * late if late > 0.0 else 0.0), priced_s * data.config_gpus[k]


@compiled
def put(data: Instance, at: Standing, j: int, n: int, k: int, sign: int) -> None:
    """Add job j on node n in configuration k (sign 1), or remove it (-1)."""
    gpus, c = data.config_gpus[k], data.config_class[k]
    busy = data.used[n] + at.gpus[n]
    if at.watts[0] != np.inf:
        before = busy if sign == 1 else busy - gpus
        at.watts[0] -= sign * extra_watts(data.power, c, before, gpus)
    for r in range(data.demand.shape[1]):
        at.capacity[n, r] -= sign * data.demand[j, r]
    at.gpus[n] += sign * gpus
    at.span[n] += sign * own_cost(data, j, n, k)[1]
    at.node[j] = n if sign == 1 else NONE
    at.config[j] = k if sign == 1 else NONE


@compiled
def has_room(data: Instance, at: Standing, j: int, n: int, k: int) -> bool:
    """Return True if node n has GPUs, resources and watts for job j in configuration k."""
    gpus, c = data.config_gpus[k], data.config_class[k]
    if data.free[n] - at.gpus[n] < gpus:
        return False
    for r in range(data.demand.shape[1]):
        if data.demand[j, r] > at.capacity[n, r] + SLACK:
            return False
    if at.watts[0] == np.inf:
        return True
    more = extra_watts(data.power, c, data.used[n] + at.gpus[n], gpus)
    return bool(more <= at.watts[0] + SLACK)


@compiled
def put_best(data: Instance, at: Standing, j: int, most: int) -> float:
    """Put job j where f falls most, with at most `most` GPUs, or drop it: change of f."""
    best, node, config = 0.0, NONE, NONE
    for i in range(data.fit_count[j]):
        k = data.choice[j, i]
        if data.config_gpus[k] > most:
            continue
        for n in range(data.free.size):
            if data.node_class[n] != data.config_class[k] or not has_room(data, at, j, n, k):
                continue
            cost, span = own_cost(data, j, n, k)
            grown = energy(data, n, at.gpus[n] + data.config_gpus[k], at.span[n] + span)
            grown -= energy(data, n, at.gpus[n], at.span[n])
            if cost + grown < best:
                best, node, config = cost + grown, n, k
    if node != NONE:
        put(data, at, j, node, config, 1)
    return best


@compiled
def take_off(data: Instance, at: Standing, rng: Ints, pool: Ints) -> tuple[float, int]:
    """Take some jobs off their nodes into `pool`: (change of f, number of jobs)."""
    kind, nodes, jobs = draw(rng), data.free.size, at.node.size
    a, b = int(draw(rng) * nodes), int(draw(rng) * nodes)
    single = 1 + int(draw(rng) * MOST_SINGLE)
    changed, count = 0.0, 0
    start = int(draw(rng) * jobs)
    for i in range(jobs):
        j = (start + i) % jobs
        n = at.node[j]
        if n == NONE or count == pool.size:
            continue
        if kind < ONE_NODE:
            off = n == a
        elif kind < TWO_NODES:
            off = n in (a, b)
        else:
            off = count < single and draw(rng) < 0.5
        if off:
            before = energy(data, n, at.gpus[n], at.span[n])
            changed -= own_cost(data, j, n, at.config[j])[0]
            put(data, at, j, n, at.config[j], -1)
            changed += energy(data, n, at.gpus[n], at.span[n]) - before
            pool[count] = j
            count += 1
    return changed, count


@compiled
def add_postponed(at: Standing, rng: Ints, pool: Ints, count: int, taken: Ints) -> int:
    """Fill the pool with postponed jobs from a random one on; return its size. `taken`: members."""
    jobs = at.node.size
    for i in range(count):
        taken[pool[i]] = 1
    start = int(draw(rng) * jobs)
    for i in range(jobs):
        j = (start + i) % jobs
        if count == pool.size:
            break
        if at.node[j] == NONE and taken[j] == 0:
            pool[count] = j
            count += 1
    for i in range(count):
        taken[pool[i]] = 0
    return count


@compiled
def put_back(data: Instance, at: Standing, rng: Ints, pool: Ints, count: int, key: Floats) -> float:
    """Put the pool's jobs back by noisy penalty; return the change of f."""
    most_gpus, changed, noisy = data.cost.shape[1] - 1, 0.0, draw(rng) < 0.8
    for i in range(count):
        u = draw(rng)
        key[i] = data.penalty[pool[i]] * u * u if noisy else u
    narrow = draw(rng)
    for i in range(count):
        top = i
        for other in range(i + 1, count):
            if key[other] > key[top]:
                top = other
        pool[i], pool[top] = pool[top], pool[i]
        key[i], key[top] = key[top], key[i]
        most = most_gpus if draw(rng) > narrow else 1 + int(draw(rng) * most_gpus)
        changed += put_best(data, at, pool[i], most)
    return changed


@compiled
def copy_standing(of: Standing, to: Standing) -> None:
    copy(of.node, to.node)
    copy(of.config, to.config)
    copy(of.gpus, to.gpus)
    copy(of.span, to.span)
    copy(of.capacity, to.capacity)
    copy(of.watts, to.watts)


@compiled
def descend(
    data: Instance, best: Standing, here: Standing, trial: Standing, cost: float, steps: int,
    rng: Ints,
) -> float:  # fmt: skip
    """Take `steps` steps from `best`, which costs `cost`; return the cost of the new `best`."""
    jobs = best.node.size
    pool, taken = np.zeros(min(MOST_POOLED, jobs), np.int64), np.zeros(jobs, np.int64)
    key = np.zeros(pool.size)
    copy_standing(best, here)
    least, current, scale = cost, cost, abs(cost)
    for step in range(steps):
        copy_standing(here, trial)
        changed, count = take_off(data, trial, rng, pool)
        count = add_postponed(trial, rng, pool, count, taken)
        changed += put_back(data, trial, rng, pool, count, key)
        warmth = draw(rng) * (1.0 - (step + 1) / steps)
        if changed <= 0.0 or current + changed < least + WARM * scale * warmth * warmth:
            copy_standing(trial, here)
            current += changed
            if current < least - SLACK:
                least = current
                copy_standing(here, best)
    return least


def polish(data: Instance, node: Ints, config: Ints, steps: int, seed: int) -> tuple[Ints, Ints]:
    """Improve (node, config) in `steps` steps; f never grows. `seed` in 1 .. 2**32 - 1."""
    best, here, trial = (all_postponed(data) for _ in range(3))
    cost = 0.0
    for j in np.flatnonzero(node != NONE).tolist():
        put(data, best, j, int(node[j]), int(config[j]), 1)
        cost += own_cost(data, j, int(node[j]), int(config[j]))[0]
    cost += sum(energy(data, n, best.gpus[n], best.span[n]) for n in range(data.free.size))
    descend(data, best, here, trial, cost, steps, np.array([seed], np.int64))
    return best.node, best.config


def all_postponed(data: Instance) -> Standing:
    """Return the solution that postpones all jobs."""
    node, config = np.full_like(data.current_node, NONE), np.full_like(data.current_node, NONE)
    gpus, span = np.zeros_like(data.free), np.zeros(data.free.size)
    return Standing(node, config, gpus, span, data.capacity.copy(), np.array([data.watts]))
