"""Operators' actions on nodes: compare-and-swap with an event, and a reschedule event."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from clusters.events import request_reschedule
from clusters.models import Cluster, Device, Node, NodeEvent, Reason
from clusters.models.nodes import Role, State
from clusters.services.devices import held_slots
from controlplane.audit.record import record, record_values
from loadmaster.protocol import MOST_SLOTS

VERBS = {State.CORDONED: "cordon", State.READY: "uncordon", State.DRAINING: "drain"}
"""Name of the action in the audit, by the state that it leads to."""


class NodeStateError(Exception):
    """Refusal of an action that the state of a node does not allow."""


def find_node(cluster: Cluster, name: str) -> Node | None:
    """Return the cluster's node with this name or id; None if it has none."""
    # Compared in Python: PostgreSQL would refuse a text with NUL, or one that is no UUID.
    for node in Node.objects.filter(cluster=cluster):
        if name in (node.name, str(node.pk)):
            return node
    return None


def node_cordon(node: Node, actor: str = "", reason: str = "") -> Node:
    """Accept no new jobs; running ones stay. A draining node stops draining."""
    values = {"state": State.CORDONED, "reason": reason[:200], "drain_until": None}
    return _move(node, {State.READY, State.DRAINING}, values, Reason.OPERATOR, actor)


def node_uncordon(node: Node, actor: str = "") -> Node:
    """Accept new jobs again."""
    values = {"state": State.READY, "reason": "", "drain_until": None}
    return _move(node, {State.CORDONED, State.DRAINING}, values, Reason.NODE_JOINED, actor)


def node_drain(
    node: Node, until: datetime | None = None, actor: str = "", reason: str = ""
) -> Node:
    """Accept no new jobs, and pre-empt those that still run at `until` (default: now)."""
    until = until or timezone.now()
    values = {"state": State.DRAINING, "reason": reason[:200], "drain_until": until}
    allowed = {State.READY, State.CORDONED, State.DRAINING}
    return _move(node, allowed, values, Reason.NODE_DRAINED, actor)


def node_set_role(node: Node, role: str, actor: str = "") -> Node:
    """Change the node's role; running jobs stay. Raises NodeStateError."""
    old_role = node.role
    new_role = Role(role)
    with transaction.atomic():
        # 1. Compare and swap: another operator may have changed the role.
        if not Node.objects.filter(pk=node.pk, role=old_role).update(role=new_role):
            raise NodeStateError(
                f"node {node} has had its role changed meanwhile; look at it again"
            )

        # 2. Note it in the node's history and the audit, and ask for a round.
        data = {"from": old_role, "to": new_role}
        NodeEvent.objects.create(node=node, event="role", data=data, actor=actor)
        record("node.role", node, old={"role": old_role}, new={"role": new_role})
        request_reschedule(node.cluster, Reason.OPERATOR, node=node)
    node.role = new_role
    return node


def node_revoke(node: Node) -> Node:
    """Revoke the node's token; its jobs end with their leases."""
    with transaction.atomic():
        Node.objects.filter(pk=node.pk).update(token_sha256="")
        NodeEvent.objects.create(node=node, event="revoked")
        record("node.revoke", node)
    node.token_sha256 = ""
    return node


def _move(
    node: Node, allowed: set[State], values: dict[str, Any], reason: Reason, actor: str
) -> Node:
    """Set fields of a node to `values`, among them its state, if its old state is allowed.

    `reason`: of the round that is asked for. Raises NodeStateError.
    """
    old_state = State(node.state)
    new_state = values["state"]
    if old_state not in allowed:
        states = " or ".join(sorted(allowed))
        raise NodeStateError(
            f"node {node} is {old_state}; only a node that is {states} can become {new_state}"
        )
    with transaction.atomic():
        # 1. Compare and swap: another operator may have moved it.
        if not Node.objects.filter(pk=node.pk, state=old_state).update(**values):
            raise NodeStateError(f"node {node} is no longer {old_state}; look at it again")

        # 2. Note it in the node's history and the audit, and ask for a round.
        data = {"from": old_state, "reason": values["reason"]}
        if values["drain_until"]:
            data["until"] = values["drain_until"].isoformat()
        event = "uncordoned" if new_state == State.READY else new_state
        NodeEvent.objects.create(node=node, event=event, data=data, actor=actor)
        old_values = {name: getattr(node, name) for name in values}
        record_values(f"node.{VERBS[new_state]}", node, values, old_values)
        request_reschedule(node.cluster, reason, node=node)
    for name, value in values.items():
        setattr(node, name, value)
    return node


class SlotsError(ValueError):
    """Invalid number of slots or unknown GPU, with the wrong `field`."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def node_set_slots(node: Node, slots: int, devices: Sequence[str] = (), actor: str = "") -> Node:
    """Let `slots` jobs share each GPU of the node, or each of `devices` (uuids).

    The number that the agent reports no longer counts. A round is asked for if a number changed.
    Raises SlotsError, and NodeStateError if more jobs hold a GPU.
    """
    if not 1 <= slots <= MOST_SLOTS:
        text = f"must be from 1 (shared with nobody) to {MOST_SLOTS}, not {slots}"
        raise SlotsError("slots", text)
    with transaction.atomic():
        # 1. Lock the rows, so that no job takes a slot meanwhile, and check the slots held.
        chosen = _lock_devices(node, devices)
        held = held_slots(chosen)
        for device in chosen:
            holders = held.get(device.pk, 0)
            if holders > slots:
                plural = "" if slots == 1 else "s"
                raise NodeStateError(
                    f"GPU {device.uuid} of node {node} is held by {holders} jobs, so it cannot have"
                    f" {slots} slot{plural} now; cancel or move one, or wait until one has ended"
                )

        # 2. Set the number, and note what changed.
        old_slots = {device.uuid: device.slots for device in chosen}
        keys = [device.pk for device in chosen]
        Device.objects.filter(pk__in=keys).update(slots=slots, slots_set=True)
        if any(number != slots for number in old_slots.values()):
            data = {"from": old_slots, "to": slots}
            NodeEvent.objects.create(node=node, event="slots", data=data, actor=actor)
            record("node.slots", node, old=old_slots, new=dict.fromkeys(old_slots, slots))
            request_reschedule(node.cluster, Reason.OPERATOR, node=node)
    return node


def _lock_devices(node: Node, uuids: Sequence[str]) -> list[Device]:
    """Lock the node's devices; return those with these uuids, or all if no uuids are given.

    Raises SlotsError for an unknown one.
    """
    devices = list(Device.objects.select_for_update().filter(node=node).order_by("pk"))
    unknown = sorted(set(uuids) - {device.uuid for device in devices})
    if unknown:
        known = ", ".join(device.uuid for device in devices) or "none"
        raise SlotsError("devices", f"node {node} has no GPU {', '.join(unknown)}; it has {known}")
    return [device for device in devices if not uuids or device.uuid in uuids]
