"""Enrolment: a single-use token becomes a node and its token; only hashes are kept."""

import hashlib
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from clusters.agent_errors import AgentCallError, bad_token, check_registration, invalid
from clusters.intervals import intervals_of, is_silent
from clusters.models import Cluster, EnrolmentToken, GpuType, Node, NodeEvent
from clusters.models.nodes import Role
from clusters.services.devices import OF_FORMER_MACHINE, sync_devices
from controlplane.audit.record import record
from loadmaster.protocol import PROTOCOL_VERSION, DeviceReport, ErrorCode, Registered, Registration

TOKEN_BYTES = 32


def sha256(text: str) -> str:
    """Return the hash of a token, in hex, by which the database knows it."""
    return hashlib.sha256(text.encode()).hexdigest()


def issue_enrolment_token(
    cluster: Cluster,
    role: str = Role.PRODUCTION,
    *,
    valid_s: float = 3600.0,
    created_by: User | None = None,
    node: Node | None = None,
) -> str:
    """Return a new token that enrols one machine within `valid_s` seconds.

    With a `node` the machine takes that node's place, whose role it keeps.
    """
    # 1. Its role; the audit says for which cluster or node it is.
    target = f"for {cluster}"
    if node is not None:
        role = node.role
        target = f"for node {node} of {cluster}"
    values = {"role": Role(role), "expires_at": timezone.now() + timedelta(seconds=valid_s)}

    # 2. Keep its hash alone.
    token = secrets.token_urlsafe(TOKEN_BYTES)
    with transaction.atomic():
        enrolment = EnrolmentToken.objects.create(
            cluster=cluster, sha256=sha256(token), created_by=created_by, node=node, **values
        )
        record("enrolment.add", target, new={"id": enrolment.pk, **values}, by=created_by)
    return token


def register(token: str, registration: Registration, now: datetime | None = None) -> Registered:
    """Enrol a machine, and return its node's id and new token.

    A machine that is known by its `machine_id` gets its node again, whose old token ends. It may
    repeat the call with the same token until its first session. Raises AgentCallError; the token
    is then unused.
    """
    # 1. An agent of another protocol could not be served, so its token stays unused.
    now = now or timezone.now()
    if registration.protocol != PROTOCOL_VERSION:
        raise AgentCallError(
            426,
            ErrorCode.PROTOCOL,
            f"this server speaks protocol {PROTOCOL_VERSION}, not {registration.protocol}",
        )

    # 2. Use the token and make the node together: a refusal takes both back.
    node_token = secrets.token_urlsafe(TOKEN_BYTES)
    with transaction.atomic():
        enrolment = _use_token(token, registration, now)
        check_registration(registration)
        node = _enrol(enrolment, registration, sha256(node_token), now)
        EnrolmentToken.objects.filter(pk=enrolment.pk).update(used_by=node)
    return Registered(
        node_id=str(node.pk), node_token=node_token, intervals=intervals_of(enrolment.cluster)
    )


def gpu_type_of(devices: tuple[DeviceReport, ...]) -> GpuType | None:
    """Return the GPU type of the devices, None without devices.

    Raises AgentCallError for a type that the server does not know.
    """
    if not devices:
        return None
    name = devices[0].gpu_type
    gpu_type = GpuType.objects.filter(name=name).first()
    if gpu_type is None:
        known = ", ".join(GpuType.objects.values_list("name", flat=True)) or "none yet"
        raise invalid(
            "devices[0].gpu_type",
            f"GPU type {name!r} is unknown here (known: {known}); an operator adds it in the admin",
        )
    return gpu_type


def check_enrolment_token(token: str) -> None:
    """Raise AgentCallError for a token that was never issued.

    It is called first, so that the server does not parse a stranger's body.
    """
    if not EnrolmentToken.objects.filter(sha256=sha256(token)).exists():
        raise _bad_token()


def _use_token(token: str, registration: Registration, now: datetime) -> EnrolmentToken:
    """Mark the token used by compare-and-swap: of two machines that send it, one is enrolled.

    Raises AgentCallError for a token that cannot be used.
    """
    digest = sha256(token)
    tokens = EnrolmentToken.objects.select_related("cluster").filter(sha256=digest)

    # 1. A token that is valid and unused.
    valid = EnrolmentToken.objects.filter(sha256=digest, expires_at__gt=now)
    if valid.filter(used_at=None).update(used_at=now):
        return tokens.get()

    # 2. A token that this machine has used: the answer may not have reached it.
    repeated = tokens.filter(
        expires_at__gt=now,
        used_by__machine_id=registration.machine_id,
        used_by__session_secret_sha256="",  # no session since
    ).first()
    if repeated is not None:
        return repeated
    raise _bad_token()


def _bad_token() -> AgentCallError:
    """Return the refusal of an enrolment token that cannot be used."""
    detail = "the enrolment token is unknown, used up or expired; ask an operator for a new one"
    return bad_token(detail)


def _enrol(
    enrolment: EnrolmentToken, registration: Registration, token_sha256: str, now: datetime
) -> Node:
    """Make or update the node of a machine, with its devices. Raises AgentCallError."""
    # 1. The registered values; a node that is enrolled anew has no session.
    gpu_type = gpu_type_of(registration.devices)
    values = {
        "name": registration.name or registration.hostname,
        "gpu_type": gpu_type,
        "cores": registration.cores,
        "memory_gb": registration.memory_gb,
        "rack": registration.rack,
        "boot_id": registration.boot_id,
        "token_sha256": token_sha256,
        "agent_version": registration.agent_version[:50],
        "features": sorted(registration.features),
        "emulated": any(device.emulated for device in registration.devices),
        "session_secret_sha256": "",
        "session_expires_at": None,
        "last_seen_at": now,
    }
    event_data: dict[str, object] = {
        "token": enrolment.pk,
        "agent_version": registration.agent_version[:50],
    }

    # 2. A token for a node lets the machine take that node's place.
    machine = {"cluster": enrolment.cluster, "machine_id": registration.machine_id}
    known = Node.objects.select_for_update(no_key=True).filter(**machine).first()
    if enrolment.node_id is not None:
        return _take_place(enrolment.node_id, registration, known, values, event_data)

    # 3. Else a known machine keeps its node, and another one becomes a new node.
    _check_name(enrolment.cluster, str(values["name"]), known)
    if known is None:
        known = Node.objects.create(**machine, role=enrolment.role, **values)
    else:
        Node.objects.filter(pk=known.pk).update(**values)
    sync_devices(known, registration.devices)
    NodeEvent.objects.create(node=known, event="enrolled", data=event_data)
    return known


def _take_place(
    node_pk: UUID,
    registration: Registration,
    known: Node | None,
    values: Mapping[str, object],
    event_data: dict[str, object],
) -> Node:
    """Let a machine take a node's place and name; the former machine's token ends.

    `known`: the machine's own node, if it has one. `values`: fields of the node to set.
    `event_data`: of the node's event. Launches of the former machine keep their devices until their
    leases are over. Raises AgentCallError while the former agent lives, or if the machine is
    another node.
    """
    # 1. Refuse a machine that is another node already, and one whose predecessor still lives.
    node = Node.objects.select_for_update(no_key=True).get(pk=node_pk)
    if known is not None and known != node:
        text = f"this machine is node {known} already; start this agent with another --state-dir"
        raise AgentCallError(409, "name_taken", text)
    if known is None and not is_silent(node.session_expires_at):
        text = f"node {node} has an agent that lives; stop it, and wait until its session is over"
        raise AgentCallError(409, ErrorCode.SESSION_LIVES, text)

    # 2. Give it the node; GPUs of the former machine stay while a job holds them.
    new_values = {**values, "name": node.name, "machine_id": registration.machine_id}
    Node.objects.filter(pk=node.pk).update(**new_values)
    sync_devices(node, registration.devices, OF_FORMER_MACHINE)
    event_data["former_machine"] = node.machine_id
    NodeEvent.objects.create(node=node, event="taken_back", data=event_data)
    return node


def _check_name(cluster: Cluster, name: str, known: Node | None) -> None:
    """Raise AgentCallError if another node of the cluster has the name."""
    if any(node != known for node in Node.objects.filter(cluster=cluster, name=name)):
        text = (
            f"name: another machine of cluster {cluster} is called {name!r}; start this agent with"
            " another name. If that machine is gone, ask an operator for a token that takes its"
            f" place: loadmaster enrol-token --node {name}"
        )
        raise AgentCallError(409, "name_taken", text, field="name")
