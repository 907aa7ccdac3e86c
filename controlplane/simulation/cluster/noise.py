"""Random draws of a run, each from a stream of its own by purpose and subject.

So turning one switch on, or another policy, leaves all other draws unchanged.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import log, sqrt
from random import Random

from controlplane.simulation.switches import Switches
from policies.contract.snapshot import KindView

DAY_S = 86_400.0


class Noise:
    """Draws of one run."""

    def __init__(self, seed: int, switches: Switches) -> None:
        self.seed, self.switches = seed, switches

    def speed(self, job: str, launch: int) -> float:
        """Factor of the true speed of a job's `launch`-th launch."""
        return self._factor(self.switches.run_time_noise, "speed", job, launch)

    def power(self, node: str, stretch: int) -> float:
        """Factor of a node's true power during its `stretch`-th stretch of constant use."""
        return self._factor(self.switches.power_noise, "power", node, stretch)

    def fails_after(self, job: str, launch: int) -> float | None:
        """Fraction of its work after which a launch fails, in [0, 1); None if it does not."""
        if not self.switches.job_failure_probability:
            return None
        draws = self._stream("failure", job, launch)
        return draws.random() if draws.random() < self.switches.job_failure_probability else None

    def uptime_s(self, node: str, number: int) -> float:
        """Seconds of uptime of a node before its `number`-th failure."""
        return self._stream("uptime", node, number).expovariate(
            self.switches.node_failures_per_day / DAY_S
        )

    def seen(self, kinds: Iterable[KindView]) -> tuple[KindView, ...]:
        """Kinds as policies see them: every throughput with a constant error of its own."""
        if not self.switches.estimate_error:
            return tuple(kinds)
        found = []
        for kind in kinds:
            seen = []
            for i, known in enumerate(kind.throughputs):
                factor = self._factor(self.switches.estimate_error, "estimate", kind.id, i)
                seen.append(replace(known, steps_per_s=known.steps_per_s * factor))
            found.append(replace(kind, throughputs=tuple(seen)))
        return tuple(found)

    def _factor(self, relative_sd: float, *what: object) -> float:
        """Lognormal with mean 1 and this standard deviation."""
        if not relative_sd:
            return 1.0
        variance = log(1.0 + relative_sd**2)
        return self._stream(*what).lognormvariate(-variance / 2.0, sqrt(variance))

    def _stream(self, *what: object) -> Random:
        return Random("/".join(map(str, (self.seed, *what))))  # noqa: S311  # no secret
