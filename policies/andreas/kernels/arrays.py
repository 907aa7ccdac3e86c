"""Dense arrays of the Randomized Greedy: the data, and the state of a construction.

E jobs, N nodes in C classes of at most G GPUs, K configurations (a class and a number of GPUs), R
scarce resources. A job, a node, a class and a configuration are numbers from 0 on; -1 is none.
"""

from typing import NamedTuple

import numpy as np

from policies.contract.snapshot import Floats, Ints
from policies.cost_model.kernels import copy
from policies.placement.kernels import compiled

TOP = 3
"""Configurations to draw from in mode paper."""


class Instance(NamedTuple):
    """Data of one call of the policy. Costs are in the cluster's currency.

    Costs of energy count priced seconds instead of seconds (`priced_options.py`).
    """

    # Preferences of the jobs.
    choice: Ints
    """int64[E, K]: configurations of a job in the order in which it tries them.

    First the `due_count[j]` that meet its due date, by rising cost; then the others of the
    `fit_count[j]` in which it can run, by rising time.
    """
    due_count: Ints
    """int64[E]: number of configurations in which the job meets its due date."""
    fit_count: Ints
    """int64[E]: number of configurations in which it can run."""
    chance: Floats
    """float64[E, 2]: cumulative probability of the first two in `choice`, inversely to cost."""

    # Run times and costs of the jobs.
    time_s: Floats
    """float64[E, K]: remaining run time; inf where impossible.

    For `current_config` it is the time on `current_node`; on another node `move_s` is added.
    """
    current_node: Ints
    """int64[E]: node where the job runs now, or -1."""
    current_config: Ints
    """int64[E]: configuration in which it runs there, or -1."""
    move_s: Floats
    """float64[E]: extra seconds of a move in the same configuration."""
    weight: Floats
    """float64[E]: tardiness weight, cost per second."""
    slack_s: Floats
    """float64[E]: due date minus now."""
    penalty: Floats
    """float64[E]: cost of postponing the job."""
    moving: Floats
    """float64[E]: cost of not leaving it where it runs."""
    priced_s: Floats
    """float64[E, K]: `time_s` in priced seconds."""
    priced_move_s: Floats
    """float64[E]: `move_s` in priced seconds."""
    gpus_min: Ints
    """int64[E]: fewest GPUs of the job."""

    # Configurations.
    alike: Ints
    """int64[K]: equal numbers for as many GPUs of one type at one cost, whatever the class."""
    config_class: Ints
    """int64[K]: class of its nodes."""
    config_gpus: Ints
    """int64[K]: number of its GPUs."""

    # Classes and nodes.
    cost: Floats
    """float64[C, G + 1]: cost per priced second of a node with so many GPUs in use."""
    power: Floats
    """float64[C, G + 1]: its watts."""
    node_class: Ints
    """int64[N]: class of each node."""
    free: Ints
    """int64[N]: GPUs to give."""
    used: Ints
    """int64[N]: GPUs in use by jobs about which nothing is decided."""

    # Doubly linked lists of the nodes of one class with equally many free GPUs.
    first: Ints
    """int64[C, G + 1]: head of each list, or -1."""
    after: Ints
    """int64[N]: next node of the same list, or -1."""
    before: Ints
    """int64[N]: previous node of the same list, or -1."""

    # Scarce resources and power.
    demand: Floats
    """float64[E, R]: amounts that each job needs."""
    capacity: Floats
    """float64[N, R]: left on each node."""
    watts: float
    """Left under the power cap; inf without one."""

    whole: int
    """1: the energy of whole runs counts; 0: only until the first end on each node."""


class State(NamedTuple):
    """A construction in progress, changed in place."""

    # As in `Instance`.
    free: Ints
    first: Ints
    after: Ints
    before: Ints
    capacity: Floats

    busy: Ints
    """int64[N]: GPUs in use, also by jobs about which nothing is decided."""
    span: Floats
    """float64[N]: priced seconds to the first end on a node; if `whole`, priced GPU seconds."""

    # int64[E] each: job, node and configuration of the placements in the order in which they were
    # made.
    job: Ints
    node: Ints
    config: Ints


def new_state(data: Instance) -> State:
    """Return arrays for constructions; `reset` empties them before each."""
    return State(
        free=data.free.copy(),
        first=data.first.copy(),
        after=data.after.copy(),
        before=data.before.copy(),
        capacity=data.capacity.copy(),
        busy=data.used.copy(),
        span=np.zeros(data.free.size),
        job=np.empty_like(data.current_node),
        node=np.empty_like(data.current_node),
        config=np.empty_like(data.current_node),
    )


@compiled
def reset(data: Instance, state: State) -> int:
    """Empty the nodes and return the number of free GPUs."""
    copy(data.free, state.free)
    copy(data.first, state.first)
    copy(data.after, state.after)
    copy(data.before, state.before)
    copy(data.capacity, state.capacity)
    copy(data.used, state.busy)
    total_gpus = 0
    for node in range(data.free.size):
        total_gpus += data.free[node]
        state.span[node] = 0.0
    return total_gpus
