"""Local search around a solution for the least f (`Objective`, of whole runs), compiled.

Large neighbourhood search (destroy and repair, Shaw 1998), beyond the ANDREAS paper. A step removes
the jobs of one or two nodes, or a few jobs. Then it inserts these and some postponed ones, those
with a high penalty first, each where f grows least. The result is kept if f has not grown, and
sometimes although it has; the best solution never gets worse.

Letters: job j, node n, configuration k, class c; arrays and their sizes are as in `arrays`.
"""

from typing import NamedTuple

import numpy as np

from policies.andreas.kernels.arrays import Instance
from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import NONE, SLACK, copy, draw, extra_watts
from policies.placement.kernels import compiled

# Cumulative probability of removing a node's jobs, or those of two nodes; else single jobs.
ONE_NODE = 0.35
TWO_NODES = 0.65

MOST_SINGLE = 4
"""Most jobs that a step removes if it removes single ones."""

MOST_POOLED = 32
"""Most jobs that a step inserts; of more postponed ones it draws some."""

NOISY_PENALTY = 0.8
"""Probability that a step inserts its jobs by penalty times noise; else at random."""

INITIAL_WARMTH = 4e-4
"""Initial fraction of |f| by which an accepted solution may be worse."""


class WorkingSolution(NamedTuple):
    """A solution, changed in place."""

    node: Ints
    """int64[E]: node of each job, -1 if postponed."""
    config: Ints
    """int64[E]: its configuration, -1 if postponed."""
    gpus: Ints
    """int64[N]: GPUs in use by these jobs."""
    gpu_s: Floats
    """float64[N]: priced GPU seconds of these jobs."""
    capacity: Floats
    """float64[N, R]: scarce resources left."""
    watts: Floats
    """float64[1]: watts left under the power cap; inf without one."""


def polish(data: Instance, node: Ints, config: Ints, steps: int, seed: int) -> tuple[Ints, Ints]:
    """Improve (node, config) in `steps` steps; f never grows. `seed` in 1 .. 2**32 - 1."""
    # 1. The solution, and its f less that of postponing all jobs.
    best = all_postponed(data)
    cost = 0.0
    for j in np.flatnonzero(node != NONE).tolist():
        put(data, best, j, int(node[j]), int(config[j]), 1)
        job_cost, _ = own_cost(data, j, int(node[j]), int(config[j]))
        cost += job_cost
    cost += sum(energy(data, n, best.gpus[n], best.gpu_s[n]) for n in range(data.free.size))

    # 2. Improve it.
    current = all_postponed(data)
    trial = all_postponed(data)
    descend(data, best, current, trial, cost, steps, np.array([seed], np.int64))
    return best.node, best.config


def all_postponed(data: Instance) -> WorkingSolution:
    """Return the solution that postpones all jobs."""
    return WorkingSolution(
        node=np.full_like(data.current_node, NONE),
        config=np.full_like(data.current_node, NONE),
        gpus=np.zeros_like(data.free),
        gpu_s=np.zeros(data.free.size),
        capacity=data.capacity.copy(),
        watts=np.array([data.watts]),
    )


@compiled
def descend(
    data: Instance,
    best: WorkingSolution,
    current: WorkingSolution,
    trial: WorkingSolution,
    cost: float,
    steps: int,
    rng: Ints,
) -> float:
    """Take `steps` steps from `best`, which costs `cost`; return the cost of the new `best`.

    `current` and `trial`: solutions to work in, whatever is in them. `rng` int64[1]: state of the
    random numbers.
    """
    jobs = best.node.size
    pool = np.zeros(min(MOST_POOLED, jobs), np.int64)
    is_pooled = np.zeros(jobs, np.int64)
    key = np.zeros(pool.size)
    copy_solution(best, current)
    best_cost = cost
    current_cost = cost
    scale = abs(cost)
    for step in range(steps):
        # 1. Remove some jobs from a copy, and insert them and some postponed ones again.
        copy_solution(current, trial)
        change, count = take_off(data, trial, rng, pool)
        count = add_postponed(trial, rng, pool, count, is_pooled)
        change += put_back(data, trial, rng, pool, count, key)

        # 2. Go on from there if it is no worse, or a little worse: less and less often, as in
        #    simulated annealing.
        warmth = draw(rng) * (1.0 - (step + 1) / steps)
        most_cost = best_cost + INITIAL_WARMTH * scale * warmth * warmth
        if change <= 0.0 or current_cost + change < most_cost:
            copy_solution(trial, current)
            current_cost += change
            if current_cost < best_cost - SLACK:
                best_cost = current_cost
                copy_solution(current, best)
    return best_cost


@compiled
def copy_solution(source: WorkingSolution, target: WorkingSolution) -> None:
    """Copy a solution into the arrays of another."""
    copy(source.node, target.node)
    copy(source.config, target.config)
    copy(source.gpus, target.gpus)
    copy(source.gpu_s, target.gpu_s)
    copy(source.capacity, target.capacity)
    copy(source.watts, target.watts)


@compiled
def take_off(data: Instance, solution: WorkingSolution, rng: Ints, pool: Ints) -> tuple[float, int]:
    """Move some jobs from their nodes into `pool`; return (change of f, number of jobs).

    They are the jobs of one node, of two nodes, or up to MOST_SINGLE jobs; at most as many as the
    pool holds.
    """
    nodes = data.free.size
    jobs = solution.node.size
    kind = draw(rng)
    first_node = int(draw(rng) * nodes)
    second_node = int(draw(rng) * nodes)
    most_single = 1 + int(draw(rng) * MOST_SINGLE)
    start = int(draw(rng) * jobs)
    change = 0.0
    count = 0
    for i in range(jobs):
        j = (start + i) % jobs
        n = solution.node[j]
        if n == NONE or count == pool.size:
            continue
        if kind < ONE_NODE:
            is_removed = n == first_node
        elif kind < TWO_NODES:
            is_removed = n in (first_node, second_node)
        else:
            is_removed = count < most_single and draw(rng) < 0.5
        if is_removed:
            energy_before = energy(data, n, solution.gpus[n], solution.gpu_s[n])
            job_cost, _ = own_cost(data, j, n, solution.config[j])
            change -= job_cost
            put(data, solution, j, n, solution.config[j], -1)
            change += energy(data, n, solution.gpus[n], solution.gpu_s[n]) - energy_before
            pool[count] = j
            count += 1
    return change, count


@compiled
def add_postponed(
    solution: WorkingSolution, rng: Ints, pool: Ints, count: int, is_pooled: Ints
) -> int:
    """Fill the pool, which has `count` jobs, with postponed ones; return its new number.

    The search begins at a random job. `is_pooled` int64[E]: zeros to work in, zeros again after.
    """
    jobs = solution.node.size
    for i in range(count):
        is_pooled[pool[i]] = 1
    start = int(draw(rng) * jobs)
    for i in range(jobs):
        j = (start + i) % jobs
        if count == pool.size:
            break
        if solution.node[j] == NONE and is_pooled[j] == 0:
            pool[count] = j
            count += 1
    for i in range(count):
        is_pooled[pool[i]] = 0
    return count


@compiled
def put_back(
    data: Instance, solution: WorkingSolution, rng: Ints, pool: Ints, count: int, key: Floats
) -> float:
    """Insert the first `count` jobs of the pool where f grows least; return the change of f.

    `key`: as long as the pool, to work in.
    """
    # 1. A random key for each job, usually higher for a job with a high penalty.
    by_penalty = draw(rng) < NOISY_PENALTY
    for i in range(count):
        u = draw(rng)
        key[i] = data.penalty[pool[i]] * u * u if by_penalty else u

    # 2. Insert them by falling key. With a probability drawn for all of them, a job gets only few
    # GPUs, which leaves some for the others.
    most_gpus = data.cost.shape[1] - 1
    change = 0.0
    narrow = draw(rng)
    for i in range(count):
        top = i
        for other in range(i + 1, count):
            if key[other] > key[top]:
                top = other
        pool[i], pool[top] = pool[top], pool[i]
        key[i], key[top] = key[top], key[i]
        most = most_gpus if draw(rng) > narrow else 1 + int(draw(rng) * most_gpus)
        change += put_best(data, solution, pool[i], most)
    return change


@compiled
def put_best(data: Instance, solution: WorkingSolution, j: int, most: int) -> float:
    """Put job j where f falls most, with at most `most` GPUs; return the change of f.

    It stays postponed, without a change, where f would not fall.
    """
    best_change = 0.0
    best_node = NONE
    best_config = NONE
    for i in range(data.fit_count[j]):
        k = data.choice[j, i]
        if data.config_gpus[k] > most:
            continue
        for n in range(data.free.size):
            if data.node_class[n] != data.config_class[k]:
                continue
            if not has_room(data, solution, j, n, k):
                continue
            job_cost, job_gpu_s = own_cost(data, j, n, k)
            gpus_after = solution.gpus[n] + data.config_gpus[k]
            more_energy = energy(data, n, gpus_after, solution.gpu_s[n] + job_gpu_s)
            more_energy -= energy(data, n, solution.gpus[n], solution.gpu_s[n])
            if job_cost + more_energy < best_change:
                best_change = job_cost + more_energy
                best_node = n
                best_config = k
    if best_node != NONE:
        put(data, solution, j, best_node, best_config, 1)
    return best_change


@compiled
def has_room(data: Instance, solution: WorkingSolution, j: int, n: int, k: int) -> bool:
    """Return True if node n has GPUs, resources and watts for job j in configuration k."""
    gpus = data.config_gpus[k]
    if data.free[n] - solution.gpus[n] < gpus:
        return False
    for r in range(data.demand.shape[1]):
        if data.demand[j, r] > solution.capacity[n, r] + SLACK:
            return False
    if solution.watts[0] == np.inf:
        return True
    busy = data.used[n] + solution.gpus[n]
    more_watts = extra_watts(data.power, data.config_class[k], busy, gpus)
    return bool(more_watts <= solution.watts[0] + SLACK)


@compiled
def put(data: Instance, solution: WorkingSolution, j: int, n: int, k: int, sign: int) -> None:
    """Add job j on node n in configuration k (sign 1), or remove it from there (-1)."""
    gpus = data.config_gpus[k]
    busy = data.used[n] + solution.gpus[n]
    if solution.watts[0] != np.inf:
        busy_of_others = busy if sign == 1 else busy - gpus
        watts = extra_watts(data.power, data.config_class[k], busy_of_others, gpus)
        solution.watts[0] -= sign * watts
    for r in range(data.demand.shape[1]):
        solution.capacity[n, r] -= sign * data.demand[j, r]
    _, job_gpu_s = own_cost(data, j, n, k)
    solution.gpus[n] += sign * gpus
    solution.gpu_s[n] += sign * job_gpu_s
    solution.node[j] = n if sign == 1 else NONE
    solution.config[j] = k if sign == 1 else NONE


@compiled
def own_cost(data: Instance, j: int, n: int, k: int) -> tuple[float, float]:
    """Return the cost of job j on node n in configuration k, and its priced GPU seconds.

    The cost is its part of f without energy, less that of postponing it.
    """
    run_s = data.time_s[j, k]
    priced_s = data.priced_s[j, k]
    cost = -data.penalty[j]
    if k != data.current_config[j] or n != data.current_node[j]:
        cost += data.moving[j]
        if k == data.current_config[j]:
            run_s += data.move_s[j]
            priced_s += data.priced_move_s[j]
    late_s = run_s - data.slack_s[j]
    tardiness = data.weight[j] * late_s if late_s > 0.0 else 0.0
    return cost + tardiness, priced_s * data.config_gpus[k]


@compiled
def energy(data: Instance, n: int, gpus: int, gpu_s: float) -> float:
    """Return the energy cost of `gpu_s` priced GPU seconds on node n with `gpus` in use."""
    if gpus <= 0:
        return 0.0
    return float(data.cost[data.node_class[n], gpus] * gpu_s / gpus)
