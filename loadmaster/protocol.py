"""The agent protocol, version 1: the payloads of agent and server.

REST under `/api/agent/v1`, JSON, bearer token, header `Loadmaster-Protocol: 1`; another version is
refused with 426. `server/client.py` of the agent has a method for each call:

    POST register                       Registration, enrolment token -> Registered
    POST nodes/{node}/session           SessionRequest -> Session; 409 while another machine's lives
    POST nodes/{node}/heartbeat         Heartbeat -> HeartbeatReply; 409 when the epoch is stale
    GET nodes/{node}/directives         ?cursor=&wait= -> Directives, or 204
    PUT assignments/{id}/accept         Accept -> LaunchSpec; 409 if stale
    PUT assignments/{id}/state          StateReport -> StateAccepted; a stale one 409
    PUT assignments/{id}/logs/{stream}  ?offset=&fence=&epoch=, gzip -> LogAccepted; 409: `expected`
    POST assignments/{id}/metrics       samples.MetricsBatch -> 202

A log's offset and `X-Content-SHA256` count unpacked bytes; `skipped=1` leaves out those before.
Times are Unix seconds: an agent's are evidence, the server's receipt time decides; the server's own
clock is in `Loadmaster-Time`. Errors are {"error": {"code", "detail", "field"?, "expected"?}}.
Every call may be repeated.

Both sides read strictly, and a server is upgraded before its agents: a field that older agents do
not know is marked LATER and left out at its default (see FEATURES).
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from loadmaster.wire import Int, Many, Text

PROTOCOL_VERSION = 1
PROTOCOL_HEADER = "Loadmaster-Protocol"
TIME_HEADER = "Loadmaster-Time"

LATER = Field(exclude_if=lambda value: not value)
"""Marks a field left out at its default, for agents that do not know it."""

IF_KNOWN = Field(ge=0, exclude_if=lambda value: value is None)
"""Marks a number left out where it is not known."""

MOST_SLOTS = 16
"""Jobs that may share one GPU at most. Policies pair two."""

MOST_DEVICES = 64
"""GPUs of one node at most, parts of them (MIG) counted."""

MOST_LAUNCHES = 4096
"""Launches that one node may know of at most."""

UNIDENTIFIED = "unidentified-"
"""Begin of the uuid of a GPU that does not tell its own; its index follows."""

CONTAINER = "{container}"
"""Stands in a node's address for a launch's own name, where containers find one another by name."""


class AssignmentState(StrEnum):
    """A committed placement's life, seen by both sides."""

    OFFERED = "offered"
    ACCEPTED = "accepted"
    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    UNKNOWN = "unknown"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    REJECTED = "rejected"
    LOST = "lost"


class ReasonClass(StrEnum):
    """Cause of an assignment's end; USER and OOM use up retries. GANG: another rank ended.

    LIMIT: its walltime or deadline was over, so it is not tried again.
    """

    USER = "user"
    OOM = "oom"
    IMAGE = "image"
    GPU = "gpu"
    NODE = "node"
    PREEMPT = "preempt"
    LEASE = "lease"
    OPERATOR = "operator"
    GANG = "gang"
    LIMIT = "limit"


class DirectiveAction(StrEnum):
    """Action wanted for an assignment, repeated by heartbeats until done."""

    START = "start"
    STOP = "stop"
    UPDATE = "update"


class StopReason(StrEnum):
    """Reason of a stop: PREEMPT saves a checkpoint, CANCEL need not."""

    PREEMPT = "preempt"
    CANCEL = "cancel"


OUT_OF_SHARED_MEMORY = "out of memory on a GPU it shared"
"""Prefix of an agent's reason for a run out of GPU memory beside another job."""


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """A GPU the agent offers. `emulated` marks a pacing clock in place of hardware.

    `trouble`: why it is unhealthy; of a healthy one a warning.
    """

    uuid: Text
    gpu_type: Text
    memory_gb: float
    parent_uuid: Text = ""
    mig_profile: Text = ""
    slots: Int = 1
    healthy: bool = True
    emulated: bool = False
    trouble: Annotated[Text, LATER] = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """First words of a machine; `hostname` names the node unless `name` does."""

    machine_id: Text
    boot_id: Text
    hostname: Text
    devices: Many[DeviceReport]
    cores: float
    memory_gb: float
    agent_version: Text
    protocol: Int = PROTOCOL_VERSION
    features: Many[Text] = ()
    name: Text = ""
    rack: Text = ""


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals that the server sets, in seconds."""

    heartbeat_s: float
    lease_s: float
    grace_s: float
    margin_s: float


@dataclass(frozen=True, slots=True)
class Registered:
    """`node_token` is shown once; the server keeps only its sha256."""

    node_id: Text
    node_token: Text
    intervals: Intervals


@dataclass(frozen=True, slots=True)
class KnownAssignment:
    """An assignment the agent's journal knows, and its state there."""

    id: Text
    fence: Int
    state: AssignmentState
    container: Text = ""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """Opens a session; one with the journal's `session_secret` supersedes the last at once.

    `address` is where other nodes reach what a launch listens on, or empty (see CONTAINER).
    `gpu_trouble`: why GPUs of the machine may be missing from `devices`. `process` is a random id
    of the agent's process, and `former_epoch` the epoch of its last session, 0 without one: of two
    agents with copies of one state folder the one that was superseded is refused (DUPLICATE).
    """

    machine_id: Text
    boot_id: Text
    session_secret: Text
    devices: Many[DeviceReport]
    assignments: Many[KnownAssignment] = ()
    agent_version: Text = ""
    features: Many[Text] = ()
    address: Text = ""
    gpu_trouble: Annotated[Text, LATER] = ""
    process: Annotated[Text, LATER] = ""
    former_epoch: Annotated[Int, LATER] = 0


@dataclass(frozen=True, slots=True)
class Session:
    """`epoch` grows with every session of the node; every later call carries it."""

    epoch: Int
    intervals: Intervals
    adopt: Many[Text] = ()
    stop: Many[Text] = ()


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """Health and use of a device at a heartbeat; power is "measured" or "modelled".

    `trouble`: why it is unhealthy; of a healthy one a warning.
    """

    uuid: Text
    healthy: bool = True
    gpu_fraction: float | None = None
    memory_used_gb: float | None = None
    power_w: float | None = None
    power_source: Text = "modelled"
    temperature_c: float | None = None
    trouble: Annotated[Text, LATER] = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Renews the leases of every assignment listed (only those the agent still watches).

    `disk_free_gb` is room for files on the disk of the agent's state folder; `gpu_trouble` is as
    in SessionRequest.
    """

    epoch: Int
    seq: Int
    sent_at_s: float
    healthy: bool = True
    devices: Many[DeviceSample] = ()
    assignments: Many[KnownAssignment] = ()
    cursor: Int = 0
    disk_free_gb: Annotated[float | None, IF_KNOWN] = None
    gpu_trouble: Annotated[Text, LATER] = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """The assignment may run for `ttl_s` from the moment the renewal was sent."""

    id: Text
    fence: Int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Directive:
    """A directive; `stop_reason`, `term_until_s`, `steps_quota` belong to STOP and UPDATE.

    `cpu_quota`: cores that a launch may use from now on; only for agents with the feature
    `cores_limit`, once the cores of a launch have been changed while it ran.
    """

    id: Text
    fence: Int
    action: DirectiveAction
    stop_reason: StopReason | None = None
    grace_s: float | None = None
    term_until_s: float | None = None
    steps_quota: Int | None = None
    cpu_quota: Annotated[float | None, IF_KNOWN] = None


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """`directives` lists everything not yet done, so that a lost answer costs latency only."""

    next_heartbeat_s: float
    leases: Many[Lease] = ()
    directives: Many[Directive] = ()
    cursor: Int = 0


@dataclass(frozen=True, slots=True)
class Accept:
    """The agent takes the offer of this fence."""

    epoch: Int
    fence: Int


@dataclass(frozen=True, slots=True)
class Host:
    """Node of a batch job: its name, its address (empty: unknown), and the job's units there."""

    name: Text
    address: Text = ""
    units: Int = 1


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One rank of one assignment: the payload of accept.

    `secrets` are never logged; `devices` are uuids on the agent's node; `image_digest` is what the
    first launch resolved the name to. A gang meets at `rendezvous` ("host:port" of rank 0, the next
    port is the training library's); its ranks know each other by `gang_token`, and `gang_gpus` are
    the GPUs of all. The guard ends it `walltime_s` after its start, and at `deadline_s`; 0: never.
    `hosts` are the nodes of a batch job in the order of its seats; `held` seats run no process: the
    job's first one uses them. The text `script` is run with the arguments `command`, in `folder`;
    `output` and `error_output` are files for what it prints. `signal` comes before its end, such as
    B:USR1@60: to its first process 60 s before, without B: to its steps, without a script to all.
    Of a longer log only head and tail are kept; a tail of 0 bytes: all of it. `team` is a number of
    the job's team, by which a root agent chooses its user. By `script_token` the programs beside a
    script (squeue, sbatch) ask the server.
    """

    assignment: Text
    job: Text
    job_name: Text
    fence: Int
    runtime: Text
    command: Many[Text]
    devices: Many[Text]
    gpu_type: Text
    purpose: Text = "training"
    copy: Int = 0
    image: Text = ""
    image_digest: Text = ""
    environment: dict[Text, Text] = field(default_factory=dict)
    secrets: dict[Text, Text] = field(default_factory=dict)
    mounts: Many[Text] = ()
    rank: Int = 0
    world_size: Int = 1
    rendezvous: Text = ""
    slot: Int = 0
    share: float = 1.0
    cpu_quota: float | None = None
    cores: float = 0.0
    memory_gb: float = 0.0
    steps: Int = 0
    steps_quota: Int | None = None
    term_until_s: float | None = None
    grace_s: float = 30.0
    checkpoint_place: Text = ""
    checkpoint_every_s: float = 30.0
    kind: Text = ""
    kind_name: Text = ""
    required_features: Many[Text] = ()
    version: Int = PROTOCOL_VERSION
    gang_token: Annotated[Text, LATER] = field(default="", repr=False)
    gang_gpus: Annotated[Int, LATER] = 0
    walltime_s: Annotated[float, LATER] = 0.0
    deadline_s: Annotated[float, LATER] = 0.0
    hosts: Annotated[Many[Host], LATER] = ()
    held: Annotated[bool, LATER] = False
    script: Annotated[Text, LATER] = ""
    folder: Annotated[Text, LATER] = ""
    output: Annotated[Text, LATER] = ""
    error_output: Annotated[Text, LATER] = ""
    signal: Annotated[Text, LATER] = ""
    log_head_bytes: Annotated[Int, LATER] = 0
    log_tail_bytes: Annotated[Int, LATER] = 0
    team: Annotated[Int, LATER] = 0
    script_token: Annotated[Text, LATER] = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class StateReport:
    """A move of an assignment as the agent saw it; `seq` grows with every report of it.

    `prepared_fraction` is of the image in PREPARING, `image_digest` its resolved name in RUNNING.
    `ran_s`: seconds that a launch ran whose end comes without an earlier report of RUNNING.
    """

    epoch: Int
    fence: Int
    seq: Int
    to: AssignmentState
    observed_at_s: float
    exit_code: Int | None = None
    reason_class: ReasonClass | None = None
    reason: Text = ""
    steps: Int | None = None
    container: Text = ""
    prepared_fraction: float | None = None
    image_digest: Text = ""
    ran_s: Annotated[float | None, LATER] = None


@dataclass(frozen=True, slots=True)
class Directives:
    """The answer to the long poll: what became wanted after the cursor."""

    directives: Many[Directive] = ()
    cursor: Int = 0


@dataclass(frozen=True, slots=True)
class StateAccepted:
    """The answer to a state report: the state the server now holds."""

    state: AssignmentState


@dataclass(frozen=True, slots=True)
class LogAccepted:
    """The answer to a piece of a log: where the next one begins."""

    next_offset: Int


class ErrorCode(StrEnum):
    """`code` of a refusal; an agent treats unknown 409s as STALE_ASSIGNMENT."""

    STALE_EPOCH = "stale_epoch"
    """Another session of the node has begun: open a new one, then repeat the call."""
    SESSION_LIVES = "session_lives"
    """Another machine holds the node's session: wait until it ends."""
    DUPLICATE = "duplicate"
    """An agent with a copy of this one's state folder has the session: end, and say so."""
    STALE_ASSIGNMENT = "stale_assignment"
    """The assignment has another fence, is over, or is not this node's: drop the report."""
    OFFSET = "offset"
    """A piece of a log begins elsewhere than at `expected`."""
    TOKEN = "token"  # noqa: S105  # a refusal's name, no secret
    """The bearer token is unknown, used up, expired or revoked."""
    PROTOCOL = "protocol"
    """The server speaks another version of the protocol."""
