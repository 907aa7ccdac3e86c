"""Jobs that may share a GPU: the agent's number, unless an operator has set one."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction

from clusters.events import request_reschedule
from clusters.models import Device, Node, NodeEvent, Reason
from clusters.services.devices import held_slots
from clusters.services.nodes import NodeStateError
from loadmaster.protocol import MOST_SLOTS


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
