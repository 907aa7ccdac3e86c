"""The loop's Celery entries. They carry hints: each may be lost, doubled or run at once with
another, and nothing goes wrong.
"""

from __future__ import annotations

import time
from typing import Any

from celery import shared_task
from celery.signals import worker_process_init
from django.utils import timezone

from clusters.events import hint_after, hint_arrived
from controlplane.loop import due_rounds
from controlplane.loop.live.solver import await_solver, solve_in_child, start_solver
from controlplane.loop.live.world import Ports, hold_round, is_wanted
from controlplane.web.logs.structured import bound

ROUNDS_A_TASK = 3
"""Rounds a task holds one after another while new events come in; then it lets others have the
worker.
"""


@shared_task
def run_cluster_round(cluster_id: int) -> None:
    """Answer the cluster's waiting events. Leaves at once if there are none or if somebody else is
    at it.

    One that leaves so lets its hint count as on its way, so that a flood of submissions sends one a
    second and not one a commit: who holds the round looks for events once more after it. A cluster
    that rests after a long round is looked after once it has rested. A task that has held its
    rounds comes back for what is left after as long a time as they took.
    """
    if due_rounds.is_held(cluster_id, timezone.now()) or _backs_off(cluster_id):
        return
    began_s = time.monotonic()
    for _ in range(ROUNDS_A_TASK):
        hint_arrived(cluster_id)
        with bound(cluster=cluster_id):
            if hold_round(cluster_id, Ports(solve_in_child, await_solver=await_solver)) is None:
                return
        if _backs_off(cluster_id):
            return
    hint_arrived(cluster_id)
    if is_wanted(cluster_id):
        run_cluster_round.apply_async(
            (cluster_id,), countdown=min(time.monotonic() - began_s, due_rounds.PATIENCE_S)
        )


def _backs_off(cluster_id: int) -> bool:
    """Whether the cluster rests after a long round; then what waits for a round is answered after
    the rest.
    """
    backoff_s = due_rounds.backoff_s(cluster_id, timezone.now())
    if backoff_s > 0 and is_wanted(cluster_id):
        hint_after(cluster_id, backoff_s)
    return backoff_s > 0


def _start_solver(**_: Any) -> None:
    """Let a worker's process warm its solver up before the first round asks it."""
    start_solver()


worker_process_init.connect(_start_solver)
