"""The order in which rows are locked, so that no two transactions wait for each other: node, then
job, then assignment.

The locks are FOR NO KEY UPDATE: an event or slot that merely refers to a locked row does not wait
for it. On SQLite a transaction begins as the only writer, and the locks are empty words.
"""

from __future__ import annotations

import uuid

from clusters.models import Node
from jobs.models import Assignment, Job


def lock_node(pk: uuid.UUID) -> Node:
    """The node with its cluster and GPU type, locked until the transaction ends."""
    return (
        Node.objects.select_for_update(of=("self",), no_key=True)
        .select_related("cluster", "gpu_type")
        .get(pk=pk)
    )


def lock_assignment(pk: uuid.UUID) -> Assignment:
    """The assignment with its job and the job's cluster: job and assignment locked until the
    transaction ends.

    Raises Assignment.DoesNotExist.
    """
    job_id = Assignment.objects.values_list("job_id", flat=True).get(pk=pk)
    job = (
        Job.objects.select_for_update(of=("self",), no_key=True)
        .select_related("cluster", "team", "kind")
        .get(pk=job_id)
    )
    assignment = (
        Assignment.objects.select_for_update(of=("self",), no_key=True)
        .select_related("node__cluster", "node__gpu_type")
        .get(pk=pk)
    )
    assignment.job = job
    return assignment
