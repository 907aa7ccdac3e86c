"""Celery tasks of the loop. Each may be lost, doubled or run at once with another without harm."""

from __future__ import annotations

import time

from celery import shared_task
from celery.signals import worker_process_init
from django.utils import timezone

from clusters.events import hint_after, hint_arrived
from controlplane.loop import due_rounds
from controlplane.loop.live.solver import await_solver, solve_in_child, start_solver
from controlplane.loop.live.world import Ports, hold_round, is_wanted
from controlplane.web.logs.structured import bound

ROUNDS_A_TASK = 3
"""Rounds a task holds one after another before it lets others have the worker."""


@shared_task
def run_cluster_round(cluster_id: int) -> None:
    """Answer the cluster's waiting events; leave if there are none or another worker answers them.

    Its hint then still counts as on its way, so that a flood of submissions sends one a second.
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
    """True while the cluster backs off after a long round; events are answered afterwards."""
    backoff_s = due_rounds.backoff_s(cluster_id, timezone.now())
    if backoff_s > 0 and is_wanted(cluster_id):
        hint_after(cluster_id, backoff_s)
    return backoff_s > 0


# A worker's process warms its solver up before the first round asks it.
worker_process_init.connect(lambda **_: start_solver(), weak=False)
