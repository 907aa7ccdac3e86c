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
FLUSH_S = 60
"""Expiry of the flush lock."""

PAUSE_FACTOR = 10
LONGEST_FLUSH_PAUSE_S = 30.0
"""Most seconds of pause after a flush, which keep the database free for other work."""

AT_ONCE = 500
"""Devices per transaction of a flush: SQLite has one writer."""

LONGEST_PAUSE_S = 0.2

MOST_BATCHES = 20_000
"""Batches per flush; earlier ones are dropped."""

BACKOFF_S = 60.0
"""Pause after a cache failure: a frozen cache delays every heartbeat by seconds."""


class Backoff:
    """Pause after a failure; a race between threads costs one more call at worst."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._until_s = clock, -inf

    def begin(self) -> None:
        self._until_s = self._clock() + BACKOFF_S

    def lasts(self) -> bool:
        return self._clock() < self._until_s


_backoff = Backoff()

_NEXT, _DONE, _FLUSHING = "samples:next", "samples:done", "samples:flushing"
_SAMPLED = ("gpu_fraction", "memory_used_gb", "power_w", "power_source", "temperature_c")
_values_of = attrgetter(*_SAMPLED)
_REPORTED = ("parent_uuid", "mig_profile", "memory_gb", "healthy", "emulated")
_WRITTEN = (*_REPORTED, "trouble", "slots")

NOT_REPORTED = "its agent no longer reports it"
"""Trouble of a GPU that vanished."""

OF_FORMER_MACHINE = "it belongs to the machine that was here before"
"""Trouble of a GPU of a node whose place another machine took; it goes once it holds nothing."""


def sync_devices(
    node: Node, reports: Sequence[DeviceReport], gpu_trouble: str = NOT_REPORTED
) -> bool:
    """Set the node's devices as reported; return True if any changed.

    Vanished ones become unhealthy by the `gpu_trouble` of the machine. The agent's number of slots
    counts until an operator sets it, and never below what is held.
    """
    known = {device.uuid: device for device in node.devices.all()}
    before = {uuid: device.healthy for uuid, device in known.items()}

    # 1. Sort the reports into known devices that changed, and new ones.
    held = held_slots(known.values())
    changed, new = [], []
    for r in reports:
        if (device := known.get(r.uuid)) is None:
            new.append(Device(node=node, uuid=r.uuid, slots=r.slots, **_reported(r)))
        elif _update(device, r, held.get(device.pk, 0)):
            changed.append(device)

    # 2. Forget those that cannot come back, and others where there are too many.
    vanished = set(known) - {r.uuid for r in reports}
    for uuid in sorted(vanished):
        is_former = OF_FORMER_MACHINE in (known[uuid].trouble, gpu_trouble)
        if is_former or uuid.startswith(UNIDENTIFIED):
            _forget(node, [uuid])
    if len(known) + len(new) > MOST_DEVICES:
        _forget(node, vanished)

    # 3. Write what changed, with an event of what became healthy or ill.
    Device.objects.bulk_update(changed, _WRITTEN)
    Device.objects.bulk_create(new)
    trouble = shown_trouble(gpu_trouble) or NOT_REPORTED
    lost = node.devices.filter(uuid__in=vanished)
    gone = lost.filter(healthy=True).exists()
    lost.exclude(trouble=OF_FORMER_MACHINE).update(healthy=False, trouble=trouble)
    told = {r.uuid: (r.healthy, trouble_of(r)) for r in reports}
    told |= {uuid: (False, trouble) for uuid in vanished if not uuid.startswith(UNIDENTIFIED)}
    _note_health_event(
        node, {uuid: t for uuid, t in told.items() if before.get(uuid, True) != t[0]}
    )
    return bool(changed or new or gone)


def _note_health_event(node: Node, changed: Mapping[str, tuple[bool, str]]) -> None:
    """Add an event of devices that became healthy or ill: by uuid their health and trouble."""
    if not changed:
        return
    data: dict[str, dict[str, Any]] = {
        "healthy": {u: healthy for u, (healthy, _) in changed.items()}
    }
    troubles = {uuid: trouble for uuid, (_, trouble) in changed.items() if trouble}
    if troubles:
        data["trouble"] = troubles
    NodeEvent.objects.create(node=node, event="devices", data=data)


def _forget(node: Node, vanished: Collection[str]) -> None:
    """Delete devices that are no longer there and hold nothing; a node's page shows all it has."""
    held = Device.objects.filter(slots_held__live=True, node=node).values("pk")
    node.devices.filter(uuid__in=vanished).exclude(pk__in=held).delete()


def _reported(report: DeviceReport) -> dict[str, Any]:
    values = {name: getattr(report, name) for name in _REPORTED}
    return {**values, "trouble": trouble_of(report)}


def _update(device: Device, report: DeviceReport, held: int) -> bool:
    before = [getattr(device, name) for name in _WRITTEN]
    for name, value in _reported(report).items():
        setattr(device, name, value)
    if not device.slots_set:
        device.slots = max(report.slots, held)
    return before != [getattr(device, name) for name in _WRITTEN]


def held_slots(devices: Iterable[Device]) -> dict[int, int]:
    """Number of assignments that hold each device, by primary key; free ones are left out."""
    keys = [device.pk for device in devices]
    held = Device.objects.filter(slots_held__live=True, pk__in=keys).order_by()
    return dict(held.values_list("pk").annotate(n=Count("slots_held")))


def note_health(doubtful: Mapping[UUID, Sequence[DeviceSample]]) -> None:
    """Write changes of health and trouble at once.

    `doubtful`: samples of nodes with a device in trouble, known or reported.
    """
    if not doubtful:
        return
    told = {(node, s.uuid): (s.healthy, trouble_of(s)) for node, of in doubtful.items() for s in of}
    changed: dict[UUID, dict[str, tuple[bool, str]]] = {}
    rows = Device.objects.filter(node__in=list(doubtful)).order_by("pk")
    for node, uuid, healthy, trouble in rows.values_list("node_id", "uuid", "healthy", "trouble"):
        now = told.get((node, uuid), (healthy, trouble))
        if now == (healthy, trouble):
            continue
        Device.objects.filter(node=node, uuid=uuid).update(healthy=now[0], trouble=now[1])
        if now[0] != healthy:
            changed.setdefault(node, {})[uuid] = now
    for node_pk in sorted(changed):
        _health_changed(Node.objects.select_related("cluster").get(pk=node_pk), changed[node_pk])


def _health_changed(node: Node, changed: Mapping[str, tuple[bool, str]]) -> None:
    """Note devices that became healthy or ill in the node's history, and ask for a round."""
    _note_health_event(node, changed)
    is_well = any(healthy for healthy, _ in changed.values())
    request_reschedule(node.cluster, Reason.NODE_JOINED if is_well else Reason.FAILURE, node=node)


def keep_samples(heard: Sequence[tuple[UUID, Sequence[DeviceSample]]]) -> None:
    """Cache the newest samples of these nodes as one batch for `flush_samples`."""
    rows = [(node.hex, s.uuid, *_values_of(s)) for node, samples in heard for s in samples]
    if not rows or _backoff.lasts():
        return
    try:
        cache.set(_key(_next_number()), rows, SAMPLES_LIVE_S)
    except (RedisError, OSError) as error:
        _backoff.begin()
        log.warning("device samples are not kept for %g s: %s", BACKOFF_S, error)


def _next_number() -> int:
    try:
        return int(cache.incr(_NEXT))
    except ValueError:  # the first of all, or the cache was emptied
        cache.add(_NEXT, 0, None)
        return int(cache.incr(_NEXT))


def flush_samples() -> int:
    """Write each device's newest cached sample, one process at a time; return their number."""
    began_s = time.monotonic()
    try:
        if not cache.add(_FLUSHING, True, FLUSH_S):
            return 0
        batches = _take_batches()
    except (RedisError, OSError) as error:
        log.warning("device samples are not flushed: %s", error)
        return 0
    newest = {(row[0], row[1]): row for batch in batches for row in batch}
    try:
        return _write([newest[key] for key in sorted(newest)])
    finally:
        _pause_after(time.monotonic() - began_s)


def end_flush_pause() -> None:
    """Let the next flush begin: after a jump back of the cache's clock a pause lasts as long."""
    try:
        cache.delete(_FLUSHING)
    except (RedisError, OSError) as error:
        log.warning("a pause of device samples may last longer: %s", error)


def _pause_after(took_s: float) -> None:
    pause_s = int(min(PAUSE_FACTOR * took_s, LONGEST_FLUSH_PAUSE_S))  # 0: it is forgotten
    try:
        cache.set(_FLUSHING, True, pause_s)
    except (RedisError, OSError) as error:
        log.warning("the next flush of device samples waits up to %d s: %s", FLUSH_S, error)


def _write(rows: Sequence[tuple[Any, ...]]) -> int:
    """Write in parts with equal pauses, so that heartbeats get their turn on SQLite."""
    written = 0
    for at in range(0, len(rows), AT_ONCE):
        began_s = time.monotonic()
        written += update_rows(Device, ("node", "uuid"), _SAMPLED, rows[at : at + AT_ONCE])
        if at + AT_ONCE < len(rows):
            time.sleep(min(time.monotonic() - began_s, LONGEST_PAUSE_S))
    return written


def _take_batches() -> list[list[tuple[Any, ...]]]:
    """Batches since the last flush, oldest first; a number without its batch is skipped."""
    last, done = int(cache.get(_NEXT) or 0), int(cache.get(_DONE) or 0)
    first = max(done if done <= last else 0, last - MOST_BATCHES)
    keys = [_key(number) for number in range(first + 1, last + 1)]
    found = cache.get_many(keys)
    cache.delete_many(list(found))
    cache.set(_DONE, last, None)
    return [found[key] for key in keys if key in found]


def _key(number: int) -> str:
    return f"samples:{number}"
