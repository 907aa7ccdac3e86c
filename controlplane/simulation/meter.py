"""What the energy of the simulated nodes costs: per node at its GPUs in use, as long as any is (ANDREAS' account)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from clusters.energy import Priced, priced
from policies.snapshot import EnergyStep, NodeView


class Meter:
    """Adds up energy and its cost; to be told before every change of what is in use."""

    def __init__(self, nodes: Mapping[str, NodeView], energy: Sequence[EnergyStep], now_s: float) -> None:
        self.nodes, self.energy = nodes, energy
        self.spent = Priced()
        self._since_s = now_s
        self._in_use: dict[str, int] = defaultdict(int)

    def use(self, now_s: float, in_use: Mapping[str, int]) -> None:
        """From `now_s` on, so many devices of each node are in use."""
        for node, devices in self._in_use.items():
            power_w = self.nodes[node].power_w[devices] if devices else 0.0
            self.spent += priced(power_w, self._since_s, now_s, self.energy)
        self._since_s, self._in_use = now_s, dict(in_use)

    @property
    def energy_kwh(self) -> float:
        """IT energy."""
        return self.spent.kwh

    @property
    def energy_cost(self) -> float:
        """Its cost at tariff and PUE."""
        return self.spent.cost

    @property
    def emissions_g(self) -> float:
        """Grams of CO2 at the facility."""
        return self.spent.emissions_g
