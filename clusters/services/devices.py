"""Devices of a node: reports, health and samples."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from operator import attrgetter
from typing import Any
from uuid import UUID

from django.core.cache import cache
from django.db.models import Count
from redis.exceptions import RedisError

from clusters.events import request_reschedule
from clusters.models import Device, Node, NodeEvent, Reason
from clusters.plausible import shown_trouble, trouble_of
from controlplane.web.storage.bulk import update_rows
from loadmaster.protocol import MOST_DEVICES, UNIDENTIFIED, DeviceReport, DeviceSample

log = logging.getLogger(__name__)

SAMPLES_LIVE_S = 120
"""Expiry in seconds of a batch of samples in the cache."""

FLUSH_S = 60
"""Expiry in seconds of the flush lock."""

PAUSE_FACTOR = 10
"""The pause after a flush is this many times its duration: other work needs the database too."""

LONGEST_FLUSH_PAUSE_S = 30.0

AT_ONCE = 500
"""Devices per transaction of a flush: SQLite has one writer."""

LONGEST_PAUSE_S = 0.2
"""Longest pause in seconds between two transactions of a flush."""

MOST_BATCHES = 20_000
"""Most batches per flush; older ones are dropped."""

BACKOFF_S = 60.0
"""Pause after a cache failure: a frozen cache delays every heartbeat by seconds."""


class Backoff:
    """Pause of BACKOFF_S after a failure; a race between threads costs one more call at worst."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s = -inf

    def begin(self) -> None:
        """Begin the pause."""
        self._until_s = self._clock() + BACKOFF_S

    def lasts(self) -> bool:
        """Return True during the pause."""
        return self._clock() < self._until_s


_backoff = Backoff()

_NEXT = "samples:next"
"""Cache key of the number of the newest batch."""

_DONE = "samples:done"
"""Cache key of the number of the last batch that was flushed."""

_FLUSHING = "samples:flushing"
"""Cache key of the flush lock, which also keeps the pause after a flush."""

_SAMPLED = ("gpu_fraction", "memory_used_gb", "power_w", "power_source", "temperature_c")
"""Fields of a Device that samples set."""

_sampled_values = attrgetter(*_SAMPLED)

_REPORTED = ("parent_uuid", "mig_profile", "memory_gb", "healthy", "emulated")
"""Fields of a Device that its report has under the same name."""

_WRITTEN = (*_REPORTED, "trouble", "slots")
"""Fields of a Device that a report sets."""

Health = tuple[bool, str]
"""(True if a device is healthy, its trouble or "")."""

SampleRow = tuple[Any, ...]
"""Node id in hex, device uuid, and the values of _SAMPLED."""

NOT_REPORTED = "its agent no longer reports it"
"""Trouble of a GPU that vanished."""

OF_FORMER_MACHINE = "it belongs to the machine that was here before"
"""Trouble of a GPU whose node another machine took over; it is deleted once no job holds it."""


def sync_devices(
    node: Node, reports: Sequence[DeviceReport], gpu_trouble: str = NOT_REPORTED
) -> bool:
    """Set the node's devices as reported; return True if any changed.

    Devices that are no longer reported become unhealthy, with `gpu_trouble` as their trouble. The
    agent's number of slots counts until an operator sets another one; it is never less than the
    slots that jobs hold.
    """
    known = {device.uuid: device for device in node.devices.all()}
    was_healthy = {uuid: device.healthy for uuid, device in known.items()}

    # 1. Sort the reports into known devices that changed, and new ones.
    held = held_slots(known.values())
    changed = []
    new = []
    for report in reports:
        device = known.get(report.uuid)
        if device is None:
            values = _reported_values(report)
            new.append(Device(node=node, uuid=report.uuid, slots=report.slots, **values))
        elif _set_as_reported(device, report, held.get(device.pk, 0)):
            changed.append(device)

    # 2. Delete vanished devices that cannot come back, and the others if there are too many.
    vanished = set(known) - {report.uuid for report in reports}
    for uuid in sorted(vanished):
        is_of_former_machine = OF_FORMER_MACHINE in (known[uuid].trouble, gpu_trouble)
        if is_of_former_machine or uuid.startswith(UNIDENTIFIED):
            _delete_free(node, [uuid])
    if len(known) + len(new) > MOST_DEVICES:
        _delete_free(node, vanished)

    # 3. Write what changed. Vanished devices that jobs hold stay, as unhealthy ones.
    Device.objects.bulk_update(changed, _WRITTEN)
    Device.objects.bulk_create(new)
    trouble_of_vanished = shown_trouble(gpu_trouble) or NOT_REPORTED
    kept = node.devices.filter(uuid__in=vanished)
    healthy_vanished = kept.filter(healthy=True).exists()
    kept.exclude(trouble=OF_FORMER_MACHINE).update(healthy=False, trouble=trouble_of_vanished)

    # 4. Note devices that became healthy or unhealthy. A new one counts as healthy before.
    health: dict[str, Health] = {}
    for report in reports:
        health[report.uuid] = (report.healthy, trouble_of(report))
    for uuid in vanished:
        if not uuid.startswith(UNIDENTIFIED):
            health[uuid] = (False, trouble_of_vanished)
    health_changed = {}
    for uuid, (healthy, trouble) in health.items():
        if healthy != was_healthy.get(uuid, True):
            health_changed[uuid] = (healthy, trouble)
    _note_health_event(node, health_changed)
    return bool(changed or new or healthy_vanished)


def _note_health_event(node: Node, changed: Mapping[str, Health]) -> None:
    """Add an event of devices, by uuid, that became healthy or unhealthy."""
    if not changed:
        return
    data: dict[str, dict[str, Any]] = {
        "healthy": {uuid: healthy for uuid, (healthy, _) in changed.items()}
    }
    troubles = {uuid: trouble for uuid, (_, trouble) in changed.items() if trouble}
    if troubles:
        data["trouble"] = troubles
    NodeEvent.objects.create(node=node, event="devices", data=data)


def _delete_free(node: Node, uuids: Collection[str]) -> None:
    """Delete those of these devices that no job holds."""
    held = Device.objects.filter(slots_held__live=True, node=node).values("pk")
    node.devices.filter(uuid__in=uuids).exclude(pk__in=held).delete()


def _reported_values(report: DeviceReport) -> dict[str, Any]:
    """Return the fields of a Device that a report sets, without its slots."""
    values = {name: getattr(report, name) for name in _REPORTED}
    values["trouble"] = trouble_of(report)
    return values


def _set_as_reported(device: Device, report: DeviceReport, held: int) -> bool:
    """Set a device as reported, without saving it; return True if it changed.

    `held`: slots of it that jobs hold.
    """
    before = [getattr(device, name) for name in _WRITTEN]
    for name, value in _reported_values(report).items():
        setattr(device, name, value)
    if not device.slots_set:
        device.slots = max(report.slots, held)
    return before != [getattr(device, name) for name in _WRITTEN]


def held_slots(devices: Iterable[Device]) -> dict[int, int]:
    """Return how many slots jobs hold of each device, by primary key; free devices are left out."""
    keys = [device.pk for device in devices]
    held = Device.objects.filter(slots_held__live=True, pk__in=keys).order_by()
    return dict(held.values_list("pk").annotate(n=Count("slots_held")))


def note_health(doubtful: Mapping[UUID, Sequence[DeviceSample]]) -> None:
    """Write changes of health and trouble, and ask for rounds of nodes whose health changed.

    `doubtful`: samples by node, of nodes with a device that has a trouble or reports one.
    """
    if not doubtful:
        return

    # 1. The health that the samples report, by node and device.
    reported: dict[tuple[UUID, str], Health] = {}
    for node_pk, samples in doubtful.items():
        for sample in samples:
            reported[node_pk, sample.uuid] = (sample.healthy, trouble_of(sample))

    # 2. Write it where it differs from the known health.
    changed: dict[UUID, dict[str, Health]] = {}
    devices = Device.objects.filter(node__in=list(doubtful)).order_by("pk")
    for device in devices.only("node_id", "uuid", "healthy", "trouble"):
        old_health = (device.healthy, device.trouble)
        new_health = reported.get((device.node_id, device.uuid), old_health)
        if new_health == old_health:
            continue
        healthy, trouble = new_health
        Device.objects.filter(pk=device.pk).update(healthy=healthy, trouble=trouble)
        if healthy != device.healthy:
            changed.setdefault(device.node_id, {})[device.uuid] = new_health

    # 3. Devices that became healthy or unhealthy change what a round can place.
    for node_pk in sorted(changed):
        node = Node.objects.select_related("cluster").get(pk=node_pk)
        _health_changed(node, changed[node_pk])


def _health_changed(node: Node, changed: Mapping[str, Health]) -> None:
    """Note devices that became healthy or unhealthy in the node's history; ask for a round."""
    _note_health_event(node, changed)
    reason = Reason.FAILURE
    if any(healthy for healthy, _ in changed.values()):
        reason = Reason.NODE_JOINED
    request_reschedule(node.cluster, reason, node=node)


def keep_samples(samples_by_node: Sequence[tuple[UUID, Sequence[DeviceSample]]]) -> None:
    """Cache the newest samples of these nodes as one batch for `flush_samples`."""
    rows = []
    for node_pk, samples in samples_by_node:
        for sample in samples:
            rows.append((node_pk.hex, sample.uuid, *_sampled_values(sample)))
    if not rows or _backoff.lasts():
        return
    try:
        cache.set(_batch_key(_next_number()), rows, SAMPLES_LIVE_S)
    except (RedisError, OSError) as error:
        _backoff.begin()
        log.warning("device samples are not kept for %g s: %s", BACKOFF_S, error)


def _next_number() -> int:
    """Return the number of a new batch."""
    try:
        return int(cache.incr(_NEXT))
    except ValueError:  # the first batch of all, or the cache was emptied
        cache.add(_NEXT, 0, None)
        return int(cache.incr(_NEXT))


def flush_samples() -> int:
    """Write each device's newest cached sample, one process at a time; return their number."""
    # 1. Take the lock and the batches since the last flush.
    began_s = time.monotonic()
    try:
        if not cache.add(_FLUSHING, True, FLUSH_S):
            return 0
        batches = _take_batches()
    except (RedisError, OSError) as error:
        log.warning("device samples are not flushed: %s", error)
        return 0

    # 2. Later batches overwrite earlier ones; all flushes write in the same order.
    newest: dict[tuple[str, str], SampleRow] = {}
    for batch in batches:
        for row in batch:
            node, uuid = row[:2]
            newest[node, uuid] = row

    # 3. Write them, and leave the database to others for a while.
    try:
        return _write([newest[key] for key in sorted(newest)])
    finally:
        _pause_after(time.monotonic() - began_s)


def end_flush_pause() -> None:
    """End the pause after a flush, which lasts too long if the cache's clock was set back."""
    try:
        cache.delete(_FLUSHING)
    except (RedisError, OSError) as error:
        log.warning("a pause of device samples may last longer: %s", error)


def _pause_after(took_s: float) -> None:
    """Keep the flush lock for a while after a flush that took so many seconds."""
    pause_s = int(min(PAUSE_FACTOR * took_s, LONGEST_FLUSH_PAUSE_S))  # 0 releases the lock
    try:
        cache.set(_FLUSHING, True, pause_s)
    except (RedisError, OSError) as error:
        log.warning("the next flush of device samples waits up to %d s: %s", FLUSH_S, error)


def _write(rows: Sequence[SampleRow]) -> int:
    """Write the rows, AT_ONCE per transaction; return the number of updated devices.

    After each transaction it pauses for as long as that took: heartbeats need SQLite's writer too.
    """
    written = 0
    for first in range(0, len(rows), AT_ONCE):
        began_s = time.monotonic()
        written += update_rows(Device, ("node", "uuid"), _SAMPLED, rows[first : first + AT_ONCE])
        if first + AT_ONCE < len(rows):
            time.sleep(min(time.monotonic() - began_s, LONGEST_PAUSE_S))
    return written


def _take_batches() -> list[list[SampleRow]]:
    """Remove the batches since the last flush from the cache, and return them, oldest first.

    A batch that has expired is skipped.
    """
    # 1. The numbers of those batches, MOST_BATCHES at most.
    newest = int(cache.get(_NEXT) or 0)
    done = int(cache.get(_DONE) or 0)
    if done > newest:  # the cache has lost the number of the newest batch
        done = 0
    first = max(done, newest - MOST_BATCHES) + 1
    keys = [_batch_key(number) for number in range(first, newest + 1)]

    # 2. Take them.
    batches = cache.get_many(keys)
    cache.delete_many(list(batches))
    cache.set(_DONE, newest, None)
    return [batches[key] for key in keys if key in batches]


def _batch_key(number: int) -> str:
    """Return the cache key of a batch."""
    return f"samples:{number}"
