"""Failures, noise and delays of a simulation, all off by default and stated with every result.

Everything random is drawn from the run's seed, separately for each purpose, so that turning one
switch leaves the others' draws as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any


class SwitchError(ValueError):
    """A switch is unknown or out of range; the message names it and says what would be right."""


_LONGEST_S = 1e7
_MOST = {
    "launch_s": _LONGEST_S, "stop_s": _LONGEST_S, "restart_cost_s": _LONGEST_S,
    "profiling_s": _LONGEST_S,
    "node_failures_per_day": 1000.0, "node_repair_s": _LONGEST_S, "job_failure_probability": 0.99,
    "checkpoint_every_s": _LONGEST_S, "decision_s": _LONGEST_S, "decision_per_job_s": _LONGEST_S,
    "run_time_noise": 1.0, "power_noise": 1.0, "estimate_error": 1.0,
    "pairs_observed": 1.0,
}  # fmt: skip
_ABOVE_ZERO = {"node_repair_s"}


@dataclass(frozen=True, slots=True)
class Switches:
    """The switches of one simulation. Seconds are virtual; a `relative sd` is that of a factor with
    mean 1.

    Costs of changing: `launch_s` from a launch to its first step, `stop_s` from the wish to stop to
    the devices' release, `restart_cost_s` what every launch of a job but its first takes more (each
    is added to the scenario's own), `profiling_s` from a kind's first arrival until its speed is
    known (its jobs wait; it is measured elsewhere, on no node of the cluster).

    Failures: `node_failures_per_day` per node (exponential gaps), each for `node_repair_s`, in
    which the node is lost; `job_failure_probability` that a launch fails at a random point of its
    work. Either way the job waits again, with the steps of its last checkpoint: one every
    `checkpoint_every_s` of work (0: none but that of an orderly stop).

    Decisions: `decision_s` that a round takes, plus `decision_per_job_s` for each job in the
    snapshot: the world goes on meanwhile, and the plan is applied to what is the case then.

    What is not as expected: `run_time_noise`, relative sd of the true speed of each launch;
    `power_noise`, relative sd of the true power of a node between two changes of its use;
    `estimate_error`, relative sd of the throughputs that policies see; `pairs_observed`, the part
    of the pairs of kinds sharing a GPU that was measured beforehand: the others policies see as
    estimated, until they run.
    """

    launch_s: float = 0.0
    stop_s: float = 0.0
    restart_cost_s: float = 0.0
    profiling_s: float = 0.0
    node_failures_per_day: float = 0.0
    node_repair_s: float = 3600.0
    job_failure_probability: float = 0.0
    checkpoint_every_s: float = 600.0
    decision_s: float = 0.0
    decision_per_job_s: float = 0.0
    run_time_noise: float = 0.0
    power_noise: float = 0.0
    estimate_error: float = 0.0
    pairs_observed: float = 1.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            _check(name, value)

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> Switches:
        """Switches from plain data. SwitchError for unknown names and values out of range."""
        known = [f.name for f in fields(cls)]
        if unknown := sorted(set(mapping) - set(known)):
            raise SwitchError(
                f"unknown switches: {', '.join(unknown)}; known are {', '.join(known)}"
            )
        return cls(**{name: _number(name, value) for name, value in mapping.items()})

    def plain(self) -> dict[str, float]:
        """All switches as plain data, for reports."""
        return asdict(self)

    @property
    def turned_on(self) -> dict[str, float]:
        """The switches that differ from their defaults."""
        usual = Switches.defaults()
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    @staticmethod
    def defaults() -> dict[str, float]:
        """Every switch's default."""
        return {f.name: f.default for f in fields(Switches) if isinstance(f.default, float)}


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SwitchError(f"{name} is {value!r:.80}: must be a number")
    try:
        return float(value)
    except OverflowError:
        raise SwitchError(f"{name} is {value!r:.80}: must be a finite number") from None


def _check(name: str, value: float) -> None:
    most = _MOST.get(name)
    if (
        not isfinite(value)
        or value < 0.0
        or (most is not None and value > most)
        or (name in _ABOVE_ZERO and value == 0.0)
    ):
        least = "above 0" if name in _ABOVE_ZERO else "at least 0"
        raise SwitchError(
            f"{name} is {value}: must be {least}" + ("" if most is None else f" and at most {most}")
        )


NO_SWITCHES = Switches()
"""All off."""
