"""Results of the client. Unknown fields are ignored, missing ones take their defaults."""

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from loadmaster.client.rest import ConnectionFailedError, given

T = TypeVar("T")


LENIENT = BeforeValidator(lambda data: given(data) if isinstance(data, dict) else {})
"""Drops fields that are null, so that they take their defaults."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Placement of one rank of a job."""

    assignment: str = ""
    node: str = ""
    gpu_type: str = ""
    emulated: bool = False
    gpus: int = 0
    units: int = 1
    devices: tuple[str, ...] = ()
    rank: int = 0
    purpose: str = ""
    state: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a job; `fraction` of its steps."""

    steps_done: int = 0
    total_steps: int = 0
    checkpoint_steps: int = 0
    fraction: float = 0.0
    steps_per_s: float | None = None
    eta: datetime | None = None
    first_loss: float | None = None
    last_loss: float | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected start of a waiting job, between `low` and `high` in four of five cases.

    `position`: in its cluster's queue, of a job read by itself.
    """

    start: datetime | None = None
    low: datetime | None = None
    high: datetime | None = None
    end: datetime | None = None
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Reason why a job does not run: a code, a sentence, what helps, and its expected start."""

    code: str = ""
    reason: str = ""
    remedy: str = ""
    expected: Annotated[Expected, LENIENT] | None = None
    start_unknown: str = ""


@dataclass(frozen=True, slots=True)
class RunTime:
    """Run time that no run and no walltime tells: 80% of `jobs` ended ones took so many seconds.

    Without `low_s` and `high_s` too few jobs have ended.
    """

    low_s: float | None = None
    high_s: float | None = None
    jobs: int = 0
    group: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class FirstForecast:
    """First forecast of a job's start, which was `later_s` seconds before its start."""

    start: datetime | None = None
    made: datetime | None = None
    later_s: float = 0.0
    inside: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Change that starts a job now, its effect on others, and the command that makes it."""

    code: str = ""
    words: str = ""
    effect: str = ""
    displaced: list[str] = field(default_factory=list)
    hidden: int = 0
    command: str = ""


@dataclass(frozen=True, slots=True)
class StartNow:
    """Changes that start a waiting job now, those that displace the fewest jobs first."""

    starts: list[Start] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    not_tried: list[str] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True, slots=True)
class SubmissionForecast:
    """Expected start of a job that is not submitted; `start` is None where it is not known."""

    starts_now: bool = False
    start: datetime | None = None
    nodes: list[str] = field(default_factory=list)
    cores: float = 0.0
    gpus: int = 0
    reason: str = ""
    run_time: Annotated[RunTime, LENIENT] | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Element:
    """Array that a job is an element of; `states`: elements by state, in folded lists."""

    id: str = ""
    number: int = 0
    index: int = 0
    indices: str = ""
    at_once: int | None = None
    size: int = 0
    states: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobArray:
    """An array of jobs with its elements by state; `changed`: elements that an action reached."""

    id: str = ""
    number: int = 0
    name: str = ""
    indices: str = ""
    at_once: int | None = None
    size: int = 0
    submitted_at: datetime | None = None
    states: dict[str, int] = field(default_factory=dict)
    changed: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A job. `spec` (of a job read by itself) is the job file that makes it again."""

    id: str = ""
    number: int = 0
    name: str = ""
    cluster: str = ""
    team: str = ""
    user: str = ""
    state: str = ""
    kind: str = ""
    gpus_min: int = 1
    gpus_max: int = 1
    priority: int = 0
    tardiness_weight: float = 0.0
    due: datetime | None = None
    deadline: datetime | None = None
    begin: datetime | None = None
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    hold_wanted: bool = False
    failure_reason: str = ""
    progress: Annotated[Progress, LENIENT] = field(default_factory=Progress)
    placement: tuple[Annotated[Placement, LENIENT], ...] = ()
    waiting: Annotated[Waiting, LENIENT] | None = None
    run_time: Annotated[RunTime, LENIENT] | None = None
    array: Annotated[Element, LENIENT] | None = None
    first_forecast: Annotated[FirstForecast, LENIENT] | None = None
    retries_used: int = 0
    max_retries: int = 0
    cloned_from: str | None = None
    spec: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Its name, of an element with its index."""
        return f"{self.name}[{self.array.index}]" if self.array else self.name


@dataclass(frozen=True, slots=True)
class Submission:
    """A submitted job and its warnings; `created` is False for a repeated submission.

    Of an array, `job` is its first element.
    """

    job: Job
    warnings: tuple[str, ...] = ()
    created: bool = True

    @property
    def id(self) -> str:
        """The job's id, of an array that of the whole array."""
        return self.job.array.id if self.job.array else self.job.id

    @property
    def number(self) -> int:
        """Number of the job as scripts for Slurm know it, of an array that of the whole array."""
        return self.job.array.number if self.job.array else self.job.number


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened to a job."""

    id: int = 0
    at: datetime | None = None
    event: str = ""
    from_state: str = ""
    to_state: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    actor: str = ""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Some text of a log, the cursor to go on with, and whether nothing more comes."""

    text: str = ""
    cursor: str = ""
    done: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU; `held_slots` of its `slots` are taken. `trouble`: why it is ill, or a warning."""

    uuid: str = ""
    slots: int = 1
    held_slots: int = 0
    memory_gb: float = 0.0
    healthy: bool = True
    trouble: str = ""
    emulated: bool = False
    gpu_fraction: float | None = None
    power_w: float | None = None
    power_source: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with GPUs; `limits`: resources of each job that its kernel limits, if known."""

    id: str = ""
    name: str = ""
    cluster: str = ""
    gpu_type: str = ""
    role: str = ""
    state: str = ""
    drain_until: datetime | None = None
    reason: str = ""
    cores: float = 0.0
    memory_gb: float = 0.0
    labels: tuple[str, ...] = ()
    emulated: bool = False
    agent_version: str = ""
    last_seen_at: datetime | None = None
    gpu_trouble: str = ""
    limits: tuple[str, ...] | None = None
    devices: tuple[Annotated[Device, LENIENT], ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """A run of the loop; `carried` is the number of an earlier round whose plan it carried out."""

    id: int = 0
    cluster: str = ""
    number: int = 0
    status: str = ""
    reasons: tuple[str, ...] = ()
    policy: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    objective: float | None = None
    message: str = ""
    carried: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    solve_s: float | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy a cluster may choose; `parameters` is the JSON Schema of its parameters."""

    name: str = ""
    summary: str = ""
    error: str | None = None
    third_party: bool = False
    parameters: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """The caller; `roles` by team: viewer, member or maintainer."""

    username: str = ""
    operator: bool = False
    teams: tuple[str, ...] = ()
    roles: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CostSum:
    """Energy and cost of a group: IT energy but for `facility_kwh`, in the answer's currency."""

    name: str = ""
    at: datetime | None = None
    job_id: str = ""
    team: str = ""
    user: str = ""
    gpu_h: float = 0.0
    kwh: float = 0.0
    measured_kwh: float = 0.0
    modelled_kwh: float = 0.0
    rest_kwh: float = 0.0
    facility_kwh: float = 0.0
    emissions_kg: float = 0.0
    cost: Decimal = Decimal(0)
    measured_cost: Decimal = Decimal(0)
    predicted_kwh: float | None = None
    predicted_cost: Decimal | None = None
    compared_cost: Decimal = Decimal(0)
    profiling_kwh: float = 0.0
    profiling_cost: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Costs:
    """Energy and cost of a time, summed up; with `more` there are groups that were not sent."""

    cluster: str = ""
    currency: str = ""
    timezone: str = ""
    since: datetime | None = None
    until: datetime | None = None
    by: str = ""
    rows: tuple[Annotated[CostSum, LENIENT], ...] = ()
    more: bool = False
    total: Annotated[CostSum, LENIENT] = field(default_factory=CostSum)


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulation: `progress` 0 to 1, `share` of its link, `document` its study if read alone."""

    id: str = ""
    name: str = ""
    user: str = ""
    team: str | None = None
    state: str = ""
    progress: float = 0.0
    left_s: float | None = None
    message: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    share: str = ""
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    document: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Token:
    """A token: the whole of it where it is new. It does not show itself in logs."""

    id: str = ""
    token: str = field(default="", repr=False)
    scope: str = ""
    created: datetime | None = None
    expiry: datetime | None = None
    last_used_at: datetime | None = None


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[cls, LENIENT])


def read(cls: type[T], data: object) -> T:
    """The dataclass that parsed JSON describes; ConnectionFailedError if it makes none."""
    try:
        found: T = _adapter(cast(Any, cls)).validate_python(data)
        return found
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise ConnectionFailedError(f"The server's answer: {path}: {first['msg']}") from None
