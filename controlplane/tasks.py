"""Celery tasks of the loop: hints that may be lost, doubled or run concurrently."""

from __future__ import annotations

import time
from typing import Any

from celery import shared_task
from celery.signals import worker_process_init
from django.utils import timezone

from clusters.ledger import meter
from clusters.reconciler import reconcile_clusters
from clusters.services import flush_samples
from controlplane.events import hint_after, hint_arrived
from controlplane.loop import due_rounds as pace
from controlplane.loop.live.solver import await_solver, solve_in_child, start_solver
from controlplane.loop.live.world import Ports, hold_round, is_wanted
from controlplane.loop.metrics import note_reconciled
from controlplane.operations.health import note_beat
from controlplane.operations.retention import prune
from controlplane.studies.running.hints import hint_simulations
from controlplane.studies.running.runner import reconcile_simulations, run_next
from controlplane.web.logs.structured import bound
from controlplane.web.storage.mutex import alone
from profiling.services import reconcile_profiles

LONG_PASS_S = 10
"""Longest time that a pass of the reconciler excludes others."""

ROUNDS_A_TASK = 3
"""Rounds held in a row by one task while new events arrive."""


@shared_task
def run_cluster_round(cluster_id: int) -> None:
    """Answer the cluster's waiting events. Leaves at once if there are none or if somebody else is
    at it.

    One that leaves so lets its hint count as on its way, so that a flood of submissions sends one a
    second and not one a commit: who holds the round looks for events once more after it. A cluster
    that rests after a long round is looked after once it has rested. A task that has held its
    rounds comes back for what is left after as long a time as they took.
    """
    if pace.is_held(cluster_id, timezone.now()) or _rests(cluster_id):
        return
    began_s = time.monotonic()
    for _ in range(ROUNDS_A_TASK):
        hint_arrived(cluster_id)
        with bound(cluster=cluster_id):
            if hold_round(cluster_id, Ports(solve_in_child, await_solver=await_solver)) is None:
                return
        if _rests(cluster_id):
            return
    hint_arrived(cluster_id)
    if is_wanted(cluster_id):
        run_cluster_round.apply_async(
            (cluster_id,), countdown=min(time.monotonic() - began_s, pace.PATIENCE_S)
        )


def _rests(cluster_id: int) -> bool:
    """True while the cluster rests after a long round; waiting events follow then."""
    rest_s = pace.rest_s(cluster_id, timezone.now())
    if rest_s > 0 and is_wanted(cluster_id):
        hint_after(cluster_id, rest_s)
    return rest_s > 0


@shared_task
def periodic_rounds() -> None:
    """Ask for a round of each cluster whose last one is a period ago."""
    note_beat()
    pace.ask_for_periodic_rounds(timezone.now())


@shared_task
def reconcile() -> None:
    """Find what was missed: silent agents, drains that are due, profile runs nobody offers,
    unanswered events, dead rounds.

    Two passes at once would do the same work twice, so the second leaves it to the first, for a
    while.
    """
    with alone("reconcile", LONG_PASS_S) as is_alone:
        if not is_alone:
            return
        now = timezone.now()
        reconcile_clusters(now)
        reconcile_profiles(now)
        for cluster_id in pace.overdue_clusters(now):
            run_cluster_round.delay(cluster_id)
        if reconcile_simulations(now):
            hint_simulations()
        note_reconciled()


@shared_task
def write_samples() -> None:
    """Write device samples of heartbeats, apart as it takes seconds on large clusters."""
    flush_samples()


@shared_task
def run_simulation() -> None:
    """Run the simulation that has waited longest, unless too many run already."""
    if run_next() is not None:
        hint_simulations()


@shared_task
def prune_old() -> None:
    """Let a part of what is old enough go."""
    prune(timezone.now())


@shared_task
def meter_energy() -> None:
    """Bring the energy of what runs into the ledger."""
    meter()


def _start_solver(**_: Any) -> None:
    """Let a worker's process warm its solver up before the first round asks it."""
    start_solver()


worker_process_init.connect(_start_solver)
