"""Events that a simulated world schedules: each says what is due, and of whom.

`controlplane.simulation.world.world` says which function answers which event. One that no longer
applies when it is due, because its launch has ended or its speed has changed, changes nothing.
"""

from typing import NamedTuple, TypeAlias

from controlplane.simulation.cluster.launch import Launch
from policies.placement.amdahl import Config


class LastStep(NamedTuple):
    """Last step of a launch's job."""

    launch: Launch


class LaunchFailure(NamedTuple):
    """Drawn failure of a launch."""

    launch: Launch


class TermEnd(NamedTuple):
    """End of a launch's term, `until_s`, unless the term has been changed."""

    launch: Launch
    until_s: float


class WalltimeEnd(NamedTuple):
    """End of the walltime of a launch whose job is killed then."""

    launch: Launch


class StopEnd(NamedTuple):
    """End of a requested stop: the launch's devices become free."""

    launch: Launch


class FirstSteps(NamedTuple):
    """End of the first steps of a launch, which show its speed on `config`."""

    launch: Launch
    config: Config


class FirstStart(NamedTuple):
    """First launch of the job in this row, whose start other jobs wait for."""

    row: int


class DeadlinePassed(NamedTuple):
    """Deadline of the job in this row of the workload."""

    row: int


class DelayEnd(NamedTuple):
    """End of a job's delay after the jobs that it waited for."""


class KindMeasured(NamedTuple):
    """End of the profiling time of a new kind."""

    kind: str


class DrainEnd(NamedTuple):
    """End of a node's drain, `until_s`, unless the node's state has changed."""

    node: str
    until_s: float


class NodeFailure(NamedTuple):
    """Drawn failure of a node, its `number`-th from 0."""

    node: str
    number: int


class NodeRepair(NamedTuple):
    """Repair of a node after its `number`-th failure."""

    node: str
    number: int


Event: TypeAlias = (
    LastStep
    | LaunchFailure
    | TermEnd
    | WalltimeEnd
    | StopEnd
    | FirstSteps
    | FirstStart
    | DeadlinePassed
    | DelayEnd
    | KindMeasured
    | DrainEnd
    | NodeFailure
    | NodeRepair
)
