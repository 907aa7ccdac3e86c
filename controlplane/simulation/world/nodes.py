"""Changes of nodes: drained, lost and restored, also at random times."""

from controlplane.simulation.world.events import DrainEnd, NodeFailure, NodeRepair
from controlplane.simulation.world.launches import ask_to_stop, fail
from controlplane.simulation.world.state import WorldState
from policies.contract.snapshot import NodeState


def lose_node(state: WorldState, node: str) -> None:
    """Fail a node: its jobs wait, with the steps of their last checkpoints."""
    if state.fleet.nodes[node].state is NodeState.LOST:
        return
    for launch in state.fleet.launches_on(node):
        fail(state, launch)
    state.fleet.change_state(node, NodeState.LOST)
    state.request_round("node_lost")


def restore_node(state: WorldState, node: str) -> None:
    """Make a node ready again."""
    state.fleet.change_state(node, NodeState.READY)
    state.request_round("node_joined")


def drain_node(state: WorldState, node: str, until_s: float) -> None:
    """Drain a node by `until_s`, when remaining jobs are stopped."""
    state.fleet.change_state(node, NodeState.DRAINING, until_s)
    state.schedule(max(until_s, state.engine.now_s), DrainEnd(node, until_s))
    state.request_round("node_drained")


def end_drain(state: WorldState, event: DrainEnd) -> None:
    """Stop what still runs on a node at the end of its drain."""
    if state.fleet.nodes[event.node].drain_until_s == event.until_s:
        for launch in state.fleet.launches_on(event.node):
            ask_to_stop(state, launch)


# ---- random failures and repairs, while there is work


def schedule_failures(state: WorldState) -> None:
    """Schedule the first failure of each node, if nodes fail."""
    if state.switches.node_failures_per_day:
        for node in state.fleet.nodes:
            _schedule_failure(state, node, 0)


def fail_node(state: WorldState, event: NodeFailure) -> None:
    """Fail a node for its time of repair, unless all jobs are over."""
    if state.is_over:
        return
    lose_node(state, event.node)
    state.schedule_in(state.switches.node_repair_s, NodeRepair(event.node, event.number))


def repair_node(state: WorldState, event: NodeRepair) -> None:
    """Restore a node, and draw its next failure."""
    restore_node(state, event.node)
    _schedule_failure(state, event.node, event.number + 1)


def _schedule_failure(state: WorldState, node: str, number: int) -> None:
    state.schedule_in(state.noise.uptime_s(node, number), NodeFailure(node, number))
