"""Dense arrays of the Randomized Greedy: the data, and the state of a construction."""

from typing import NamedTuple

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import copy
from policies.placement.kernels import compiled

TOP = 3
"""Configurations to draw from in mode paper."""


class Instance(NamedTuple):
    """Data of one call: E jobs, N nodes in C classes of at most G GPUs, K configurations.

    `choice` int64[E, K]: configurations of a job, the `due_count[j]` that meet its due date by
    rising cost, then up to `fit_count[j]` by rising time. `chance` float64[E, 2]: cumulative
    probability of its first two, inversely to their cost. `time_s` float64[E, K]: run time of what
    is left there; `current_node` / `current_config`: node and configuration where it runs now (-1:
    none), whose time holds on that very node only, `move_s` more elsewhere. `priced_s` and
    `priced_move_s`: the same in priced seconds, which energy is counted in
    (`priced_options.py`). `slack_s` due date minus now. `penalty` cost of postponing, `moving` of
    not staying. `cost` float64[C, G + 1] per second with g GPUs in use, `power` watts
    likewise; `used` GPUs of a node in use by others. `first` int64[C, G + 1], `after` and `before`
    int64[N]: the lists of nodes by class and free GPUs. `demand` float64[E, R], `capacity`
    float64[N, R]: R scarce resources; `watts` left under the power cap (inf: none). `whole`: energy
    is that of whole runs, not until each node's first end. `alike` int64[K]: the same number for
    configurations of as many GPUs of one type at one cost, whatever the class.
    """

    choice: Ints
    due_count: Ints
    fit_count: Ints
    chance: Floats
    time_s: Floats
    current_node: Ints
    current_config: Ints
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
    """Construction in progress: free GPUs, lists and resources as in `Instance`, GPUs `busy`.

    `span`: priced seconds to the first end of each node (or priced GPU seconds, `Instance.whole`);
    `job`, `node`, `config`: the placements in order.
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
    return State(
        data.free.copy(), data.first.copy(), data.after.copy(), data.before.copy(),
        data.capacity.copy(), data.used.copy(), np.zeros(data.free.size),
        data.current_node.copy(), data.current_node.copy(), data.current_node.copy(),
    )  # fmt: skip


@compiled
def reset(data: Instance, state: State) -> int:
    """Empty the nodes and return the number of free GPUs."""
    copy(data.free, state.free)
    copy(data.first, state.first)
    copy(data.after, state.after)
    copy(data.before, state.before)
    copy(data.capacity, state.capacity)
    copy(data.used, state.busy)
    total = 0
    for n in range(data.free.size):
        total += data.free[n]
        state.span[n] = 0.0
    return total
