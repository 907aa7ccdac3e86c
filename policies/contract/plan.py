"""Plan of a policy: placements, and the reason of every job left waiting.

`validation.validate_plan` checks a plan, live and simulated. The JSON form is documented in
`schemas/plan.schema.json`; `plan_json` reads and writes it.

What fits on a node is one rule: amounts of cores, memory and named resources are compared as
integers (`demanded`, `available`), in billionths; bytes of memory, as `_gb` is 10**9 bytes. Both
sides are rounded down, a capacity after a rounding error is given back, so that n equal parts of
any capacity fit into it together; sums of integers have no rounding errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import floor
from typing import Annotated, Any, Protocol

from pydantic import Field

from foundation.forms import Above0, AtLeast0, Count0, Count1, Fraction, PlainData

PLAN_VERSION = 7

LONGEST_TEXT = 10_000
LAST_S = 253_402_300_799.0
"""End of the year 9999."""

LONGEST_RUN_S = 1e12
HIGHEST_COST = 1e7

Moment = Annotated[float, Field(ge=0, le=LAST_S)]


class Purpose(StrEnum):
    """Purpose of a placement: to do the job's work, or to measure its kind."""

    TRAINING = "training"
    PROFILING = "profiling"


TRAINING, PROFILING = Purpose.TRAINING, Purpose.PROFILING
"""Looked up once: class attributes of enums are slow on Python 3.11."""


class PlanStatus(StrEnum):
    """Quality of a plan. KEPT: no new decision, running jobs stay."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    HEURISTIC = "heuristic"
    KEPT = "kept"


class WaitCode(StrEnum):
    """Reason why a job waits: true as `placement.waiting.reason_rules` says, worded when shown."""

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
    NODES_OF_OTHER_TEAMS = "nodes_of_other_teams"
    DEPENDENCY = "dependency"
    POWER_CAP = "power_cap"
    RESERVED = "reserved"
    NODES_UNAVAILABLE = "nodes_unavailable"
    NODES_LOST = "nodes_lost"
    NODES_AVOIDED = "nodes_avoided"
    NOT_SPREAD = "not_spread"
    SOLVER_FAILED = "solver_failed"
    TEAM_LIMIT = "team_limit"
    OUTBID = "outbid"


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """Seat of a job: a node, its devices, the share of them, and the job's units there."""

    node: str
    devices: tuple[str, ...]
    share: Fraction = 1.0
    cpu_quota: Above0 | None = None
    units: Count1 = 1


@dataclass(frozen=True)
class Running:
    """Placement that is committed or runs."""

    copy: Count0
    ranks: tuple[RankPlacement, ...]
    since_s: float
    until_s: float | None = None
    steps_quota: Count1 | None = None
    purpose: Purpose = Purpose.TRAINING

    @cached_property
    def gpus(self) -> int:
        """Devices held over all ranks."""
        return sum([len(seat.devices) for seat in self.ranks])

    @cached_property
    def units(self) -> int:
        """Units of a batch job over all ranks."""
        return sum([seat.units for seat in self.ranks])

    @cached_property
    def is_whole(self) -> bool:
        """True if it shares none of its devices."""
        return all(seat.share == 1.0 for seat in self.ranks)


def training_run(runs: tuple[Running, ...]) -> Running | None:
    """Return the run that does a job's work; None if there is none, or several copies."""
    training = [run for run in runs if run.purpose is TRAINING]
    return training[0] if len(training) == 1 else None


def predicted(figure: float, most: float) -> float | None:
    """Return a predicted figure; None if it is unknown or beyond what a plan may say."""
    return figure if abs(figure) <= most else None


@dataclass(frozen=True, slots=True)
class Placement:
    """Copy of a job on its nodes and devices, one seat per rank.

    `steps_quota` ends the placement after so many steps, `until_s` at that time (its term); None:
    until the job ends. `predicted_run_s` is the run time of the remaining work in seconds,
    `predicted_energy_cost` its cost in the cluster's currency; None: unknown.
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
        if len(self.ranks) == 1:  # most jobs, and much faster
            return len(self.ranks[0].devices)
        return sum(len(seat.devices) for seat in self.ranks)

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
    """Job left waiting: the code of the reason, its details, and the expected start if known.

    `nodes` and `jobs` are in the way, or meant by the code. `watts`: power that is missing.
    `missing`: GPU types, labels or the runtime that no suitable node has; `offered`: those that
    they have. `lacks`: amounts of which no node has enough. `from_s`: when `gpus` are reserved for
    the first of `jobs`, energy is cheaper, or the cap rises. `team`: the one that may use no more
    than `gpus`. `price` of the GPUs that the job wants and its `worth` there, in the policy's own
    unit.
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
    team: str = ""
    price: AtLeast0 | None = None
    worth: AtLeast0 | None = None

    def priced(self, code: WaitCode, price: float, worth: float) -> Waiting:
        """Return the same reason with another code, price and worth; much faster than `replace`."""
        return Waiting(
            self.job, code, self.nodes, self.jobs, self.watts, self.missing, self.offered,
            self.lacks, self.from_s, self.gpus, self.expected, self.team, price, worth,
        )  # fmt: skip

    def of(self, job: str, expected: Expected | None) -> Waiting:
        """Return the same reason of another job; much faster than `replace`."""
        return Waiting(
            job, self.code, self.nodes, self.jobs, self.watts, self.missing, self.offered,
            self.lacks, self.from_s, self.gpus, expected, self.team, self.price, self.worth,
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


BILLIONTHS = 1_000_000_000
UNLIMITED = 1 << 60
"""Amount that never runs out, and the most that counts."""
EXACT = 1.0 + 2.0**-50
"""Makes up for the error of a decimal fraction, as 0.29 of a core."""
EXACT_CAPACITY = 1.0 + 2.0**-49
"""More than `EXACT`, and than the errors of dividing a capacity and multiplying both."""


def demanded(amount: float) -> int:
    """Return what a job demands, in billionths."""
    return floor(min(amount * BILLIONTHS * EXACT, UNLIMITED))


def available(amount: float) -> int:
    """Return what a node has, in billionths."""
    return floor(min(amount * BILLIONTHS * EXACT_CAPACITY, UNLIMITED))


def all_demanded(amounts: Mapping[str, float]) -> dict[str, int]:
    """Return these demands in billionths, without those of nothing."""
    return {name: demanded(amount) for name, amount in amounts.items() if amount > 0.0}


def seat_demanded(
    of_unit: Mapping[str, float], units: int, cpu_quota: float | None
) -> dict[str, int]:
    """Return what a seat of so many units demands, in billionths; a quota replaces the cores."""
    amounts = {name: amount * units for name, amount in all_demanded(of_unit).items()}
    if cpu_quota is not None:
        amounts["cores"] = demanded(cpu_quota)
    return amounts


class UnitColumns(Protocol):
    """Columns of jobs by name, as in `JobColumns`."""

    @property
    def others(self) -> Mapping[str, tuple[Any, ...]]: ...

    @property
    def listed(self) -> Mapping[str, list[Any]]: ...


def seat_demand(columns: UnitColumns, row: int, units: int = 1) -> dict[str, float]:
    """Return cores, memory_gb and resources of a job's seat with so many units."""
    demand = {name: amount * units for name, amount in columns.others["resources"][row]}
    demand["cores"] = columns.listed["cores"][row] * units
    demand["memory_gb"] = columns.listed["memory_gb"][row] * units
    return demand


def gpus_per_unit(columns: UnitColumns, row: int) -> int:
    """Return the GPUs of each unit of a batch job."""
    return int(columns.listed["gpus_min"][row] // columns.listed["units"][row])
