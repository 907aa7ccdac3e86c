"""Operators' actions on nodes: compare-and-swap with its event, and a reschedule event."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from clusters.events import request_reschedule
from clusters.models import Device, Node, NodeEvent, Reason
from clusters.models.nodes import Role, State
from clusters.services.devices import held_slots
from loadmaster.protocol import MOST_SLOTS


class NodeStateError(Exception):
    """The node is in a state from which this cannot be done; the text says which."""


def node_cordon(node: Node, actor: str = "", reason: str = "") -> Node:
    """Keep what runs, take nothing new. A draining node stops draining."""
    return _move(
        node,
        {State.READY, State.DRAINING},
        State.CORDONED,
        Reason.OPERATOR,
        actor,
        reason=reason[:200],
        drain_until=None,
    )


def node_uncordon(node: Node, actor: str = "") -> Node:
    """Take work again, after a cordon or a drain."""
    return _move(
        node,
        {State.CORDONED, State.DRAINING},
        State.READY,
        Reason.NODE_JOINED,
        actor,
        reason="",
        drain_until=None,
    )


def node_drain(
    node: Node, deadline: datetime | None = None, actor: str = "", reason: str = ""
) -> Node:
    """Drain: no new work, empty by `deadline` (default now), when the rest is pre-empted."""
    until = deadline or timezone.now()
    before = {State.READY, State.CORDONED, State.DRAINING}
    return _move(
        node,
        before,
        State.DRAINING,
        Reason.NODE_DRAINED,
        actor,
        reason=reason[:200],
        drain_until=until,
    )


def node_set_role(node: Node, role: str, actor: str = "") -> Node:
    """Change what the node is for; what runs there goes on."""
    wanted, before = Role(role), node.role
    with transaction.atomic():
        if not Node.objects.filter(pk=node.pk, role=before).update(role=wanted):
            raise NodeStateError(
                f"node {node} has had its role changed meanwhile; look at it again"
            )
        NodeEvent.objects.create(
            node=node, event="role", data={"from": before, "to": wanted}, actor=actor
        )
        request_reschedule(node.cluster, Reason.OPERATOR, node=node)
    node.role = wanted
    return node


def node_revoke(node: Node, actor: str = "") -> Node:
    """Revoke the node's token: what runs there ends with its lease. Enrol again for a new one."""
    with transaction.atomic():
        Node.objects.filter(pk=node.pk).update(token_sha256="")
        NodeEvent.objects.create(node=node, event="revoked", actor=actor)
    node.token_sha256 = ""
    return node


def _move(
    node: Node, before: set[State], after: State, why: Reason, actor: str, **values: Any
) -> Node:
    was = State(node.state)
    if was not in before:
        allowed = " or ".join(sorted(before))
        raise NodeStateError(
            f"node {node} is {was}; only a node that is {allowed} can become {after}"
        )
    with transaction.atomic():
        if not Node.objects.filter(pk=node.pk, state=was).update(state=after, **values):
            raise NodeStateError(f"node {node} is no longer {was}; look at it again")
        data = {"from": was, "reason": values.get("reason", "")}
        if values.get("drain_until"):
            data["until"] = values["drain_until"].isoformat()
        NodeEvent.objects.create(
            node=node, event=after if after != State.READY else "uncordoned", data=data, actor=actor
        )
        request_reschedule(node.cluster, why, node=node)
    node.state = after
    for name, value in values.items():
        setattr(node, name, value)
    return node


class SlotsError(ValueError):
    """Invalid slots or no such GPU; `field` names the place, the text the remedy."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def node_set_slots(node: Node, slots: int, uuids: Sequence[str] = (), actor: str = "") -> Node:
    """Let `slots` jobs share each GPU of the node, or those named, whatever its agent offers.

    SlotsError for a wrong number or an unknown GPU, NodeStateError where more assignments hold a
    GPU now. Triggers a round if any number changed. The rows are locked against new holders.
    """
    check_slots(slots)
    with transaction.atomic():
        devices = _chosen(node, uuids)
        _check_held(devices, slots)
        before = {device.uuid: device.slots for device in devices}
        Device.objects.filter(pk__in=[device.pk for device in devices]).update(
            slots=slots, slots_set=True
        )
        if any(number != slots for number in before.values()):
            NodeEvent.objects.create(
                node=node, event="slots", data={"from": before, "to": slots}, actor=actor
            )
            request_reschedule(node.cluster, Reason.OPERATOR, node=node)
    return node


def check_slots(slots: int) -> None:
    """SlotsError for a number of slots that no GPU can have."""
    if not 1 <= slots <= MOST_SLOTS:
        raise SlotsError(
            "slots", f"must be from 1 (shared with nobody) to {MOST_SLOTS}, not {slots}"
        )


def _chosen(node: Node, uuids: Sequence[str]) -> list[Device]:
    """The node's devices of these uuids, or all, locked in order."""
    devices = list(Device.objects.select_for_update().filter(node=node).order_by("pk"))
    if unknown := sorted(set(uuids) - {device.uuid for device in devices}):
        has = ", ".join(device.uuid for device in devices) or "none"
        raise SlotsError("devices", f"node {node} has no GPU {', '.join(unknown)}; it has {has}")
    return [device for device in devices if not uuids or device.uuid in uuids]


def _check_held(devices: Sequence[Device], slots: int) -> None:
    held = held_slots(devices)
    for device in devices:
        if (now := held.get(device.pk, 0)) > slots:
            raise NodeStateError(
                f"GPU {device.uuid} of node {device.node} is held by {now} jobs, so it cannot have"
                f" {slots} slot{'' if slots == 1 else 's'} now; cancel or move one, or wait until"
                " one has ended"
            )
