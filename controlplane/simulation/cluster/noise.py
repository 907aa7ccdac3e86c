"""Random draws of a simulated run, each from a stream of its own by purpose and subject.

So a switch that is turned on, or another policy, leaves all other draws unchanged.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import log, sqrt
from random import Random

from controlplane.simulation.switches import Switches
from policies.contract.snapshot import KindView

DAY_S = 86_400.0
"""Seconds of a day."""


class Noise:
    """Draws of one run. The same arguments give the same draw, whenever it is asked for."""

    def __init__(self, seed: int, switches: Switches) -> None:
        self.seed = seed
        self.switches = switches

    def speed(self, job: str, launch: int) -> float:
        """Return the factor of the true speed in a job's launch of this number."""
        return self._factor(self.switches.run_time_noise, "speed", job, launch)

    def power(self, node: str, stretch: int) -> float:
        """Return the factor of a node's true power in the `stretch`-th time of constant use."""
        return self._factor(self.switches.power_noise, "power", node, stretch)

    def fails_after(self, job: str, launch: int) -> float | None:
        """Return the fraction of its work after which a launch fails, in [0, 1).

        Return None if it does not fail.
        """
        probability = self.switches.job_failure_probability
        if not probability:
            return None
        draws = self._stream("failure", job, launch)
        if draws.random() >= probability:
            return None
        return draws.random()

    def uptime_s(self, node: str, number: int) -> float:
        """Return the seconds of uptime of a node before its failure of this number."""
        failures_per_s = self.switches.node_failures_per_day / DAY_S
        return self._stream("uptime", node, number).expovariate(failures_per_s)

    def seen(self, kinds: Iterable[KindView]) -> tuple[KindView, ...]:
        """Return the kinds as policies see them: each throughput has its own constant error."""
        relative_sd = self.switches.estimate_error
        if not relative_sd:
            return tuple(kinds)
        seen_kinds = []
        for kind in kinds:
            throughputs = []
            for number, throughput in enumerate(kind.throughputs):
                factor = self._factor(relative_sd, "estimate", kind.id, number)
                seen_steps_per_s = throughput.steps_per_s * factor
                throughputs.append(replace(throughput, steps_per_s=seen_steps_per_s))
            seen_kinds.append(replace(kind, throughputs=tuple(throughputs)))
        return tuple(seen_kinds)

    def _factor(self, relative_sd: float, *subject: object) -> float:
        """Draw a lognormal factor with mean 1 and this standard deviation."""
        if not relative_sd:
            return 1.0
        # A lognormal variable has the mean exp(mu + variance / 2), and its own squared relative
        # standard deviation is exp(variance) - 1.
        variance = log(1.0 + relative_sd**2)
        return self._stream(*subject).lognormvariate(-variance / 2.0, sqrt(variance))

    def _stream(self, *subject: object) -> Random:
        """Return the random stream of a purpose and its subject, from its begin."""
        words = [str(word) for word in (self.seed, *subject)]
        return Random("/".join(words))  # noqa: S311  # no secret
