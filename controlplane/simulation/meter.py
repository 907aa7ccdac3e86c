"""What the energy of the simulated nodes costs: per node at its GPUs in use, as long as any is (ANDREAS' account)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from clusters.energy import energy_cost, energy_kwh
from policies.snapshot import EnergyStep, NodeView


class Meter:
    """Adds up energy and its cost; to be told before every change of what is in use."""

    def __init__(self, nodes: Mapping[str, NodeView], energy: Sequence[EnergyStep], now_s: float) -> None:
        self.nodes, self.energy = nodes, energy
        self.energy_kwh = 0.0
        self.energy_cost = 0.0
        self._since_s = now_s
        self._in_use: dict[str, int] = defaultdict(int)

    def use(self, now_s: float, in_use: Mapping[str, int]) -> None:
        """From `now_s` on, so many devices of each node are in use."""
        for node, devices in self._in_use.items():
            power_w = self.nodes[node].power_w[devices] if devices else 0.0
            self.energy_kwh += energy_kwh(power_w, self._since_s, now_s)
            self.energy_cost += energy_cost(power_w, self._since_s, now_s, self.energy)
        self._since_s, self._in_use = now_s, dict(in_use)
