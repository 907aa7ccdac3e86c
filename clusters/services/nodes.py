"""Operators' actions on nodes: compare-and-swap with an event, and a reschedule event."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from clusters.events import request_reschedule
from clusters.models import Device, Node, NodeEvent, Reason
from clusters.models.nodes import Role, State
from clusters.services.devices import held_slots
from controlplane.audit.record import record, record_values
from loadmaster.protocol import MOST_SLOTS

VERBS = {State.CORDONED: "cordon", State.READY: "uncordon", State.DRAINING: "drain"}


class NodeStateError(Exception):
    """Node in a state that does not allow the action."""


def node_cordon(node: Node, actor: str = "", reason: str = "") -> Node:
    """Accept no new jobs; running ones stay. A draining node stops draining."""
    values = {"state": State.CORDONED, "reason": reason[:200], "drain_until": None}
    return _move(node, {State.READY, State.DRAINING}, values, Reason.OPERATOR, actor)


def node_uncordon(node: Node, actor: str = "") -> Node:
    values = {"state": State.READY, "reason": "", "drain_until": None}
    return _move(node, {State.CORDONED, State.DRAINING}, values, Reason.NODE_JOINED, actor)


def node_drain(
    node: Node, until: datetime | None = None, actor: str = "", reason: str = ""
) -> Node:
    """Accept no new jobs and be empty by `until` (default now), when the rest is pre-empted."""
    until = until or timezone.now()
    values = {"state": State.DRAINING, "reason": reason[:200], "drain_until": until}
    before = {State.READY, State.CORDONED, State.DRAINING}
    return _move(node, before, values, Reason.NODE_DRAINED, actor)


def node_set_role(node: Node, role: str, actor: str = "") -> Node:
    """Change the node's role; running jobs stay."""
    wanted, before = Role(role), node.role
    with transaction.atomic():
        if not Node.objects.filter(pk=node.pk, role=before).update(role=wanted):
            raise NodeStateError(
                f"node {node} has had its role changed meanwhile; look at it again"
            )
        NodeEvent.objects.create(
            node=node, event="role", data={"from": before, "to": wanted}, actor=actor
        )
        record("node.role", node, old={"role": before}, new={"role": wanted})
        request_reschedule(node.cluster, Reason.OPERATOR, node=node)
    node.role = wanted
    return node


def node_revoke(node: Node) -> Node:
    """Revoke the node's token; its jobs end with their leases."""
    with transaction.atomic():
        Node.objects.filter(pk=node.pk).update(token_sha256="")
        NodeEvent.objects.create(node=node, event="revoked")
        record("node.revoke", node)
    node.token_sha256 = ""
    return node


def _move(node: Node, before: set[State], values: dict[str, Any], why: Reason, actor: str) -> Node:
    was, after = State(node.state), values["state"]
    if was not in before:
        allowed = " or ".join(sorted(before))
        raise NodeStateError(
            f"node {node} is {was}; only a node that is {allowed} can become {after}"
        )
    with transaction.atomic():
        if not Node.objects.filter(pk=node.pk, state=was).update(**values):
            raise NodeStateError(f"node {node} is no longer {was}; look at it again")
        data = {"from": was, "reason": values["reason"]}
        if values["drain_until"]:
            data["until"] = values["drain_until"].isoformat()
        event = "uncordoned" if after == State.READY else after
        NodeEvent.objects.create(node=node, event=event, data=data, actor=actor)
        old = {name: getattr(node, name) for name in values}
        record_values(f"node.{VERBS[after]}", node, values, old)
        request_reschedule(node.cluster, why, node=node)
    for name, value in values.items():
        setattr(node, name, value)
    return node


class SlotsError(ValueError):
    """Invalid slots or unknown GPU; `field` names the place, the text the remedy."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def node_set_slots(node: Node, slots: int, devices: Sequence[str] = (), actor: str = "") -> Node:
    """Let `slots` jobs share each GPU of the node, or those named, whatever its agent offers.

    Raises SlotsError, or NodeStateError where more assignments hold a GPU. Triggers a round if any
    number changed. Rows are locked against new holders.
    """
    if not 1 <= slots <= MOST_SLOTS:
        raise SlotsError(
            "slots", f"must be from 1 (shared with nobody) to {MOST_SLOTS}, not {slots}"
        )
    with transaction.atomic():
        chosen = _locked(node, devices)
        held = held_slots(chosen)
        for device in chosen:
            if (now := held.get(device.pk, 0)) > slots:
                plural = "" if slots == 1 else "s"
                raise NodeStateError(
                    f"GPU {device.uuid} of node {node} is held by {now} jobs, so it cannot have"
                    f" {slots} slot{plural} now; cancel or move one, or wait until one has ended"
                )
        before = {device.uuid: device.slots for device in chosen}
        Device.objects.filter(pk__in=[d.pk for d in chosen]).update(slots=slots, slots_set=True)
        if any(number != slots for number in before.values()):
            data = {"from": before, "to": slots}
            NodeEvent.objects.create(node=node, event="slots", data=data, actor=actor)
            record("node.slots", node, old=before, new=dict.fromkeys(before, slots))
            request_reschedule(node.cluster, Reason.OPERATOR, node=node)
    return node


def _locked(node: Node, uuids: Sequence[str]) -> list[Device]:
    devices = list(Device.objects.select_for_update().filter(node=node).order_by("pk"))
    if unknown := sorted(set(uuids) - {device.uuid for device in devices}):
        has = ", ".join(device.uuid for device in devices) or "none"
        raise SlotsError("devices", f"node {node} has no GPU {', '.join(unknown)}; it has {has}")
    return [device for device in devices if not uuids or device.uuid in uuids]
