"""Plan of a policy: placements, and the reason of every job left waiting.

`validation.validate_plan` checks a plan, live and simulated. The JSON form is documented in
`schemas/plan.schema.json`; `plan_json` reads and writes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from policies.contract.forms import AtLeast0, PlainData
from policies.contract.snapshot import Purpose, RankPlacement

PLAN_VERSION = 4

LONGEST_TEXT = 10_000
LAST_S = 253_402_300_799.0
"""End of the year 9999."""

LONGEST_RUN_S = 1e12
HIGHEST_COST = 1e7

Moment = Annotated[float, Field(ge=0, le=LAST_S)]


class PlanStatus(StrEnum):
    """Quality of a plan. KEPT: no new decision, running jobs stay."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    HEURISTIC = "heuristic"
    KEPT = "kept"


class WaitCode(StrEnum):
    """Reason why a job waits; worded only when shown."""

    NO_CAPACITY = "no_capacity"
    POSTPONED = "postponed"
    PREEMPTED = "preempted"
    CHEAPER_LATER = "cheaper_later"
    BETTER_NODE = "better_node"
    AWAITING_PROFILE = "awaiting_profile"
    NO_THROUGHPUT = "no_throughput"
    NO_NODE_FITS = "no_node_fits"
    TYPES_UNAVAILABLE = "types_unavailable"
    LABEL_UNAVAILABLE = "label_unavailable"
    RUNTIME_UNAVAILABLE = "runtime_unavailable"
    AGENT_TOO_OLD = "agent_too_old"
    DEPENDENCY = "dependency"
    POWER_CAP = "power_cap"
    RESERVED = "reserved"
    NODES_UNAVAILABLE = "nodes_unavailable"
    NODES_LOST = "nodes_lost"
    NODES_AVOIDED = "nodes_avoided"
    SOLVER_FAILED = "solver_failed"


def predicted(figure: float, most: float) -> float | None:
    """Return a predicted figure; None if it is unknown or beyond what a plan may say."""
    return figure if abs(figure) <= most else None


@dataclass(frozen=True, slots=True)
class Placement:
    """A job's copy on its nodes and devices, one seat per rank.

    `steps_quota` ends the placement after so many steps, `until_s` at that time (its term); None:
    until the job ends. Predicted: run time of the remaining work, and its cost.
    """

    job: str
    ranks: tuple[RankPlacement, ...]
    copy: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    purpose: Purpose = Purpose.TRAINING
    steps_quota: Annotated[int, Field(ge=1, le=2**63 - 1)] | None = None
    until_s: Moment | None = None
    predicted_run_s: Annotated[float, Field(ge=0, le=LONGEST_RUN_S)] | None = None
    predicted_energy_cost: Annotated[float, Field(ge=-HIGHEST_COST, le=HIGHEST_COST)] | None = None

    @property
    def gpus(self) -> int:
        """Devices held over all ranks."""
        ranks = self.ranks
        return (
            len(ranks[0].devices) if len(ranks) == 1 else sum(len(seat.devices) for seat in ranks)
        )

    @property
    def key(self) -> tuple[str, Purpose, int]:
        """Unique key within a plan."""
        return (self.job, self.purpose, self.copy)


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected start of a waiting job, its end (None: unknown), and its nodes and GPUs then."""

    start_s: Moment
    end_s: Moment | None = None
    nodes: tuple[str, ...] = ()
    gpus: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0


@dataclass(frozen=True, slots=True)
class Lack:
    """Amount that a job wants of a node (`gpus`, `cores` ...), and the most that one has."""

    name: str
    wanted: AtLeast0
    most: AtLeast0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job left waiting: the code, what is in the way, and what is expected if known.

    `missing`: GPU types, labels or runtime that no suitable node has; `offered`: those there are.
    `from_s`: when `gpus` are reserved for the first of `jobs`, energy is cheaper, or the cap rises.
    """

    job: str
    code: WaitCode
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    watts: AtLeast0 | None = None
    missing: tuple[str, ...] = ()
    offered: tuple[str, ...] = ()
    lacks: tuple[Lack, ...] = ()
    from_s: Moment | None = None
    gpus: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    expected: Expected | None = None

    def of(self, job: str, expected: Expected | None) -> "Waiting":
        """Return the same reason of another job; much faster than `replace`."""
        return Waiting(
            job, self.code, self.nodes, self.jobs, self.watts, self.missing, self.offered,
            self.lacks, self.from_s, self.gpus, expected,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """Decision of one round. A running job that is neither placed nor waiting is an error.

    `objective` and `bound` are in the policy's own unit (cost for ANDREAS); `shares[job][gpu_type]`
    are fractions of time of share policies; `memory` comes back with the next snapshot.
    """

    policy: str
    status: PlanStatus
    placements: tuple[Placement, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    objective: float | None = None
    bound: float | None = None
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    memory: PlainData = field(default_factory=dict)
    message: Annotated[str, Field(max_length=LONGEST_TEXT)] = ""
    version: int = PLAN_VERSION
