"""Runner of simulations: taken from the queue by turns, watched, given back by dead workers.

Celery carries hints: a task that is doubled, late or lost breaks nothing. A worker that takes a
simulation holds a slot and renews its row; one that is not renewed any more is queued again by the
reconciler, and the next worker goes on with what is finished.

Turns: the next simulation is the oldest of the person with the fewest running; of several, the one
whose last simulation began longest ago. Deleting that one gains no turn.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db import Error, IntegrityError, transaction
from django.db.models import Count, F, OuterRef, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from controlplane.studies.lifecycle import SimulationMove, move_simulation
from controlplane.studies.models import LastStart, Simulation, SimulationFile
from controlplane.studies.running.folders import (
    TooLargeError,
    folder_of,
    packed_files,
    remove_folder,
    sweep,
)
from controlplane.studies.running.process import Status, StudyProcess
from controlplane.studies.running.workers import is_stopping
from controlplane.web.storage.lock_holder import new_owner, owner_has_ended
from controlplane.web.storage.watch import THIS_MACHINE, Watch, stamp
from jobs.moves import LostRaceError

logger = logging.getLogger(__name__)

EXPIRY = timedelta(seconds=30)
"""Time for which an unrenewed simulation counts as running."""

TURN_S = 1.0
MOST_STARTS = 5
"""Starts after which a simulation whose workers keep dying is given up."""

State = Simulation.State


def _process(folder: Path) -> StudyProcess:
    return StudyProcess(
        folder, processes=settings.SIMULATION_PROCESSES, memory_gb=settings.SIMULATION_MEMORY_GB
    )


@dataclass(frozen=True, slots=True)
class Ports:
    """Dependencies of running simulations, replaceable in tests."""

    process: Callable[[Path], StudyProcess] = _process
    stopping: Callable[[], bool] = is_stopping
    turn_s: float = TURN_S


def run_next(ports: Ports | None = None) -> Simulation | None:
    """Run the next waiting simulation to its end; None without one or without slot."""
    ports = ports or Ports()
    if ports.stopping():
        return None
    sweep()
    simulation = claim(timezone.now())
    if simulation is not None:
        _run(simulation, ports)
    return simulation


def claim(now: datetime) -> Simulation | None:
    """Claim the next waiting simulation; None without one or without slot."""
    while (slot := _free_slot()) is not None:
        if (simulation := _next_waiting(now)) is None:
            return None
        lease = {"slot": slot, "owner": new_owner(), "expires_at": now + EXPIRY}
        start = {"started_at": now, "starts": simulation.starts + 1}
        with suppress(LostRaceError, IntegrityError), transaction.atomic():
            LastStart.objects.update_or_create(user_id=simulation.user_id, defaults={"at": now})
            return move_simulation(simulation, SimulationMove.START, **lease, **start)
    return None


def _next_waiting(now: datetime) -> Simulation | None:
    """Return the oldest waiting simulation of the person whose turn it is.

    A start in time to come, of a clock that was ahead, counts as none: it says nothing of turns.
    """
    running = Simulation.objects.filter(user=OuterRef("user"), state=State.RUNNING).order_by()
    counted = running.values("user").annotate(running=Count("pk"))
    begun = LastStart.objects.filter(user=OuterRef("user"), at__lte=now)
    waiting = Simulation.objects.filter(state=State.QUEUED).annotate(
        running=Coalesce(Subquery(counted.values("running")), 0),
        begun_at=Subquery(begun.values("at")),
    )
    turn = ("running", F("begun_at").asc(nulls_first=True), "created_at", "pk")
    return waiting.order_by(*turn).first()


def _free_slot() -> int | None:
    taken = set(Simulation.objects.filter(slot__isnull=False).values_list("slot", flat=True))
    slots = range(1, settings.SIMULATIONS_AT_ONCE + 1)
    return next((slot for slot in slots if slot not in taken), None)


def _run(simulation: Simulation, ports: Ports) -> None:
    with suppress(LostRaceError):  # cancelled or taken over as it ended: that has decided
        try:
            folder = folder_of(simulation)
            with ports.process(folder) as process:
                status = _watch(simulation, process, ports)
            if status is not None:
                _finish(simulation, folder, status)
        except OSError as error:
            _fail(simulation, f"its files cannot be written: {error.strerror or error}")


def _watch(simulation: Simulation, process: StudyProcess, ports: Ports) -> Status | None:
    """Follow it to its end; None if it was lost or given back to other workers."""
    since_s = renewed_s = time.monotonic()
    while True:
        status = process.listen(ports.turn_s)
        if status.ended and not status.busy:
            return status
        if time.monotonic() - since_s > settings.SIMULATION_LIMIT_S:
            why = f"it took more than {settings.SIMULATION_LIMIT_S / 3600:g} hours"
            return Status(status.progress, ended=True, error=why)
        if status.busy or ports.stopping():
            starts = max(0, simulation.starts - 1)
            values = {"starts": starts, "progress": status.progress}
            move_simulation(simulation, SimulationMove.LOSE, **values)
            return None
        try:
            if not renew(simulation, status, timezone.now()):
                remove_folder(simulation)
                return None
            renewed_s = time.monotonic()
        except Error as error:
            logger.warning(
                "simulation %s could not be renewed and is tried again: %s", simulation.pk, error
            )
            if time.monotonic() - renewed_s > EXPIRY.total_seconds():
                return None


def renew(simulation: Simulation, status: Status, now: datetime) -> bool:
    """Save its progress and keep it; False if cancelled, deleted or taken over."""
    own = Simulation.objects.filter(pk=simulation.pk, state=State.RUNNING, owner=simulation.owner)
    updated = own.update(
        progress=status.progress,
        left_s=status.left_s,
        message=status.message[:1000],
        expires_at=now + EXPIRY,
    )
    return bool(updated)


def _finish(simulation: Simulation, folder: Path, status: Status) -> None:
    try:
        files = [] if status.error else packed_files(simulation, folder)
    except TooLargeError as error:
        status = replace(status, error=str(error))
    if status.error:
        _fail(simulation, status.error)
        return
    with transaction.atomic():
        move_simulation(simulation, SimulationMove.FINISH, progress=1.0, message="")
        SimulationFile.objects.filter(simulation=simulation).delete()
        SimulationFile.objects.bulk_create(files)
    remove_folder(simulation)


def _fail(simulation: Simulation, why: str) -> None:
    move_simulation(simulation, SimulationMove.FAIL, message=why[:2000])
    remove_folder(simulation)


def reconcile_simulations(watch: Watch = THIS_MACHINE) -> bool:
    """Requeue orphaned simulations, or fail them after MOST_STARTS; True if any waits."""
    running = list(Simulation.objects.filter(state=State.RUNNING).defer("document"))
    written = {str(s.pk): stamp(s.owner, s.expires_at) for s in running}
    still_s = watch.still_s({f"simulation:{pk}": text for pk, text in written.items()})
    for simulation in running:
        silent_s = still_s[f"simulation:{simulation.pk}"]
        if owner_has_ended(simulation.owner) or silent_s > EXPIRY.total_seconds():
            with suppress(LostRaceError):
                _lose(simulation)
    return _free_slot() is not None and Simulation.objects.filter(state=State.QUEUED).exists()


def _lose(simulation: Simulation) -> None:
    if simulation.starts >= MOST_STARTS:
        died = f"its worker died {simulation.starts} times"
        why = f"{died}; it may need more memory than there is"
        move_simulation(simulation, SimulationMove.FAIL, message=why)
    else:
        why = "its worker died; it goes on with what is finished"
        move_simulation(simulation, SimulationMove.LOSE, message=why)
