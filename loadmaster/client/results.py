"""What the client gives back. Fields the server adds later are ignored; ones it leaves out take
their defaults.
"""

from __future__ import annotations

import dataclasses
import types
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one rank of a job is."""

    assignment: str = ""
    node: str = ""
    gpu_type: str = ""
    emulated: bool = False
    gpus: int = 0
    devices: tuple[str, ...] = ()
    rank: int = 0
    purpose: str = ""
    state: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is; `fraction` of its steps."""

    steps_done: int = 0
    total_steps: int = 0
    checkpoint_steps: int = 0
    fraction: float = 0.0
    steps_per_s: float | None = None
    eta: datetime | None = None
    first_loss: float | None = None
    last_loss: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a job does not run: a code, and a sentence."""

    code: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A job. `spec` (of a job read by itself) is the job file that makes it again."""

    id: str = ""
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
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    hold_wanted: bool = False
    failure_reason: str = ""
    progress: Progress = field(default_factory=Progress)
    placement: tuple[Placement, ...] = ()
    waiting: Waiting | None = None
    retries_used: int = 0
    max_retries: int = 0
    cloned_from: str | None = None
    spec: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Submission:
    """A submitted job and what is strange about it; `created` is False where the same submission
    had come before.
    """

    job: Job
    warnings: tuple[str, ...] = ()
    created: bool = True

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id


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
    """A GPU; `held_slots` of its `slots` are taken."""

    uuid: str = ""
    slots: int = 1
    held_slots: int = 0
    memory_gb: float = 0.0
    healthy: bool = True
    emulated: bool = False
    gpu_fraction: float | None = None
    power_w: float | None = None
    power_source: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with GPUs."""

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
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """A run of the loop. `carried` is the number of the round whose plan it carried out, if it
    decided nothing anew.
    """

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
    """The caller."""

    username: str = ""
    operator: bool = False
    teams: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CostSum:
    """Energy and cost of a group: kWh are IT energy but for `facility_kwh`; costs are in the
    answer's currency.
    """

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


@dataclass(frozen=True, slots=True)
class Costs:
    """Energy and cost of a time, summed up; `more` says that there are more groups than were
    sent.
    """

    cluster: str = ""
    currency: str = ""
    timezone: str = ""
    since: datetime | None = None
    until: datetime | None = None
    by: str = ""
    rows: tuple[CostSum, ...] = ()
    more: bool = False
    total: CostSum = field(default_factory=CostSum)


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulation: `progress` 0 to 1, `share` the last part of its share link, `document` its
    study where it is read by itself.
    """

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
    """A new token. It does not show itself in logs."""

    id: str = ""
    token: str = field(default="", repr=False)
    expiry: datetime | None = None


def read(cls: type[T], data: object) -> T:
    """The dataclass that parsed JSON describes; what does not fit its field's type takes the
    default.
    """
    given = data if isinstance(data, dict) else {}
    hints = get_type_hints(cls)
    values = {}
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]  # T is always a dataclass here
        if item.name in given and given[item.name] is not None:
            values[item.name] = _value(hints[item.name], given[item.name])
    return cls(**values)


def read_all(cls: type[T], data: object) -> list[T]:
    """A dataclass for every entry of a parsed list."""
    return [read(cls, row) for row in data] if isinstance(data, list) else []


def _value(hint: Any, value: Any) -> Any:
    if get_origin(hint) in (types.UnionType, Union):
        hint = next(h for h in get_args(hint) if h is not type(None))
    if dataclasses.is_dataclass(hint):
        return read(hint, value)  # type: ignore[arg-type]  # a dataclass type, as just asked
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_value(get_args(hint)[0], entry) for entry in value)
    if hint is datetime and isinstance(value, str):
        return datetime.fromisoformat(value)
    if hint is Decimal and isinstance(value, str):
        return Decimal(value)
    if hint is float and isinstance(value, int):
        return float(value)
    return value
