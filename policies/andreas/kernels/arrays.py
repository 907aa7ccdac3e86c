"""Dense arrays of the Randomized Greedy: the data, and what a construction changes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.placement.kernels import compiled

NONE = -1
TOP = 3
"""Configurations to draw from in mode paper."""


class Instance(NamedTuple):
    """One call's data: E jobs, N nodes in C classes with at most G GPUs, K configurations (class,
    gpus), R scarce resources.

    `choice` int64[E, K]: configurations of a job, the `due_count[j]` that meet its due date by
    rising cost, then up to `fit_count[j]` by rising time. `chance` float64[E, 2]: cumulative
    probability of its first two, inversely to their cost. `time_s` float64[E, K]: run time of what
    is left there; `home` / `home_config`: node and configuration where it runs now (-1: none),
    whose time holds on that very node only, `move_s` more elsewhere. `priced_s` and
    `priced_move_s`: the same in priced seconds, which energy is counted in
    (`policies.placement.options`). `slack_s` due date minus now. `penalty` cost of postponing,
    `moving` of not staying. `cost` float64[C, G + 1] per second with g GPUs in use, `power` watts
    likewise; `used` GPUs of a node in use by others. `first` int64[C, G + 1], `after` and `before`
    int64[N]: the lists of nodes by class and free GPUs. `demand` float64[E, R], `capacity`
    float64[N, R]: scarce resources; `watts` left under the power cap (inf: none). `whole`: energy
    is that of whole runs, not until each node's first end. `alike` int64[K]: the same number for
    configurations of as many GPUs of one type at one cost, whatever the class.
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
    priced_s: Floats
    priced_move_s: Floats
    gpus_min: Ints
    alike: Ints
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
    """What one construction changes: free GPUs, lists and resources as in `Instance`, GPUs `busy`,
    priced seconds to the first end (or priced GPU seconds, `Instance.whole`) as `span` of each
    node, and in order what was placed: (job, node, config).
    """

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
        np.zeros(nodes, np.int64),
        *lists,
        np.zeros_like(data.capacity),
        np.zeros(nodes, np.int64),
        np.zeros(nodes),
        *placed,
    )


@compiled
def reset(data: Instance, state: State) -> int:
    """Empty the nodes; free GPUs in all. Loops, as array assignment compiles slowly."""
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
