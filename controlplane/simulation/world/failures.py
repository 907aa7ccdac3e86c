"""Random failures and repairs of nodes."""

from functools import partial

from controlplane.simulation.world.world import SimulatedWorld


class NodeFailures:
    """Failures of a world's nodes, at times of their own, while there is work."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        for node in world.fleet.nodes if world.switches.node_failures_per_day else ():
            self._next(node, 0)

    def _next(self, node: str, number: int) -> None:
        self.world.engine.after(
            self.world.noise.uptime_s(node, number), partial(self._fail, node, number)
        )

    def _fail(self, node: str, number: int) -> None:
        if self.world.is_over:
            return
        self.world.lose(node)
        self.world.engine.after(
            self.world.switches.node_repair_s, partial(self._repair, node, number)
        )

    def _repair(self, node: str, number: int) -> None:
        self.world.restore(node)
        self._next(node, number + 1)
