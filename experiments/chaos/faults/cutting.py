"""Partitions: the link between agent and server is cut, in one direction or both."""

import time

from experiments.chaos.faults.network import Network
from experiments.chaos.schedule import Blow
from experiments.chaos.system import System


class Cutting:
    """The field of `Run` that cuts links."""

    def __init__(self, network: Network, system: System) -> None:
        self._network, self._system = network, system
        self._mend_at_s: dict[int, float] = {}

    def strike(self, blow: Blow) -> str | None:
        """Cut the target's link unless it is cut already."""
        number = int(blow.target.rpartition("-")[2])
        if number in self._mend_at_s:
            return None
        self._network.cut(number, blow.how)
        self._system.parts[blow.target].note_away()
        self._mend_at_s[number] = time.monotonic() + blow.hold_s
        return f"cut {blow.target} off ({blow.how}) for {blow.hold_s:.1f} s"

    def mend(self) -> None:
        """Mend the links whose time has come."""
        now_s = time.monotonic()
        for number, at_s in list(self._mend_at_s.items()):
            if at_s <= now_s:
                self._network.mend(number)
                self._system.parts[f"agent-{number}"].note_back()
                del self._mend_at_s[number]
