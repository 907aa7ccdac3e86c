"""Runner of simulations: takes them from the queue by turns, and watches them to their end.

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
from dataclasses import dataclass
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
"""Seconds between two renewals."""

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
    while True:
        slot = _free_slot()
        if slot is None:
            return None
        simulation = _next_waiting(now)
        if simulation is None:
            return None
        lease = {"slot": slot, "owner": new_owner(), "expires_at": now + EXPIRY}
        start = {"started_at": now, "starts": simulation.starts + 1}
        # Another worker may take the simulation or the slot first; then look again.
        with suppress(LostRaceError, IntegrityError), transaction.atomic():
            LastStart.objects.update_or_create(user_id=simulation.user_id, defaults={"at": now})
            return move_simulation(simulation, SimulationMove.START, **lease, **start)


def _next_waiting(now: datetime) -> Simulation | None:
    """Return the oldest waiting simulation of the person whose turn it is.

    A last start later than `now`, of a clock that was ahead, is left out: it says nothing of turns.
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
    """Number of a free slot, from 1; None if all are taken."""
    taken = set(Simulation.objects.filter(slot__isnull=False).values_list("slot", flat=True))
    for slot in range(1, settings.SIMULATIONS_AT_ONCE + 1):
        if slot not in taken:
            return slot
    return None


def _run(simulation: Simulation, ports: Ports) -> None:
    """Run a claimed simulation, and store its end unless another move has decided it."""
    with suppress(LostRaceError):  # it was cancelled or taken over as it ended
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
    began_s = time.monotonic()
    renewed_s = began_s
    while True:
        # 1. It has ended, or must end.
        status = process.listen(ports.turn_s)
        if status.ended and not status.busy:
            return status
        if time.monotonic() - began_s > settings.SIMULATION_LIMIT_S:
            limit = f"it took more than {settings.SIMULATION_LIMIT_S / 3600:g} hours"
            return Status(status.progress, ended=True, error=limit)

        # 2. It goes on elsewhere if this worker stops, or another process has the folder. That
        #    start does not count.
        if status.busy or ports.stopping():
            starts = max(0, simulation.starts - 1)
            progress = status.progress
            move_simulation(simulation, SimulationMove.LOSE, starts=starts, progress=progress)
            return None

        # 3. Renew it. While the database is away it may run until others take it for lost.
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
    """Store the results of a simulation that has ended, or its failure."""
    if status.error:
        _fail(simulation, status.error)
        return
    try:
        files = packed_files(simulation, folder)
    except TooLargeError as error:
        _fail(simulation, str(error))
        return
    with transaction.atomic():
        move_simulation(simulation, SimulationMove.FINISH, progress=1.0, message="")
        SimulationFile.objects.filter(simulation=simulation).delete()
        SimulationFile.objects.bulk_create(files)
    remove_folder(simulation)


def _fail(simulation: Simulation, reason: str) -> None:
    move_simulation(simulation, SimulationMove.FAIL, message=reason[:2000])
    remove_folder(simulation)


def reconcile_simulations(watch: Watch = THIS_MACHINE) -> bool:
    """Requeue orphaned simulations, or fail them after MOST_STARTS; True if any waits."""
    # 1. The time for which each worker's renewals have been missing.
    running = list(Simulation.objects.filter(state=State.RUNNING).defer("document"))
    stamps = {}
    for simulation in running:
        stamps[f"simulation:{simulation.pk}"] = stamp(simulation.owner, simulation.expires_at)
    silent_s = watch.still_s(stamps)

    # 2. A simulation whose worker has ended, or is silent for too long, is lost.
    for simulation in running:
        is_silent = silent_s[f"simulation:{simulation.pk}"] > EXPIRY.total_seconds()
        if owner_has_ended(simulation.owner) or is_silent:
            with suppress(LostRaceError):
                _lose(simulation)
    return _free_slot() is not None and Simulation.objects.filter(state=State.QUEUED).exists()


def _lose(simulation: Simulation) -> None:
    """Queue a simulation again whose worker is lost; fail it after too many starts."""
    if simulation.starts >= MOST_STARTS:
        message = (
            f"its worker died {simulation.starts} times; it may need more memory than there is"
        )
        move_simulation(simulation, SimulationMove.FAIL, message=message)
    else:
        message = "its worker died; it goes on with what is finished"
        move_simulation(simulation, SimulationMove.LOSE, message=message)
