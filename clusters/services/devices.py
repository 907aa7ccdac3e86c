"""A node's devices: what its agent reports of them, their health, and their samples."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.core.cache import cache
from redis.exceptions import RedisError

from clusters.models import Device, Node, NodeEvent
from controlplane.events import request_reschedule
from controlplane.models import Reason
from loadmaster.protocol import DeviceReport, DeviceSample

log = logging.getLogger(__name__)

SAMPLES_LIVE_S = 600
_SAMPLED = ("gpu_fraction", "memory_used_gb", "power_w", "power_source", "temperature_c")
_REPORTED = ("parent_uuid", "mig_profile", "slots", "memory_gb", "healthy", "emulated")


def sync_devices(node: Node, reports: Sequence[DeviceReport]) -> bool:
    """Make the node's rows what the agent reports; a device that has vanished is kept as unhealthy. Whether anything changed."""
    known = {device.uuid: device for device in node.devices.all()}
    changed = [d for r in reports if r.uuid in known and _update(d := known[r.uuid], r)]
    new = [Device(node=node, uuid=r.uuid, **_reported(r)) for r in reports if r.uuid not in known]
    vanished = set(known) - {r.uuid for r in reports}
    Device.objects.bulk_update(changed, _REPORTED)
    Device.objects.bulk_create(new)
    gone = node.devices.filter(uuid__in=vanished, healthy=True).update(healthy=False) if vanished else 0
    return bool(changed or new or gone)


def _reported(report: DeviceReport) -> dict[str, Any]:
    return {name: getattr(report, name) for name in _REPORTED}


def _update(device: Device, report: DeviceReport) -> bool:
    before = [getattr(device, name) for name in _REPORTED]
    for name, value in _reported(report).items():
        setattr(device, name, value)
    return before != [getattr(device, name) for name in _REPORTED]


def note_health(node: Node, samples: Iterable[DeviceSample]) -> None:
    """Write changes of health at once: placements depend on them. Changes are rare, so this mostly reads one query."""
    known = dict(node.devices.values_list("uuid", "healthy"))
    changed = {s.uuid: s.healthy for s in samples if s.uuid in known and known[s.uuid] != s.healthy}
    if not changed:
        return
    for healthy in (True, False):
        node.devices.filter(uuid__in=[u for u, h in changed.items() if h is healthy]).update(healthy=healthy)
    NodeEvent.objects.create(node=node, event="devices", data={"healthy": changed})
    reason = Reason.NODE_JOINED if any(changed.values()) else Reason.FAILURE
    request_reschedule(node.cluster, reason, node=node)


def keep_samples(node: Node, samples: Sequence[DeviceSample], now: datetime) -> None:
    """Leave the newest samples in the cache; `flush_samples` writes them in batches. Without a cache they are simply not kept."""
    values = {s.uuid: {name: getattr(s, name) for name in _SAMPLED} for s in samples}
    try:
        cache.set(_key(node), {"at": now, "devices": values}, SAMPLES_LIVE_S)
    except RedisError as error:
        log.warning("device samples of %s are not kept: %s", node, error)


def flush_samples(nodes: Sequence[Node]) -> int:
    """Write what the heartbeats left in the cache since the last flush, in few queries; how many devices were written."""
    try:
        found = cache.get_many([_key(node) for node in nodes])
        cache.delete_many(found)
    except RedisError as error:
        log.warning("device samples are not flushed: %s", error)
        return 0
    samples = {node.pk: found[_key(node)] for node in nodes if _key(node) in found}
    devices = [d for d in Device.objects.filter(node__in=samples) if d.uuid in samples[d.node_id]["devices"]]
    for device in devices:
        for name, value in samples[device.node_id]["devices"][device.uuid].items():
            setattr(device, name, value)
    Device.objects.bulk_update(devices, _SAMPLED, batch_size=200)
    return len(devices)


def _key(node: Node) -> str:
    return f"heartbeat:{node.pk}"
