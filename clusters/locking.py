"""The order in which rows are locked, so that no two transactions wait for each other: node, then
job, then assignment.

The locks are FOR NO KEY UPDATE: an event or slot that merely refers to a locked row does not wait
for it. On SQLite a transaction begins as the only writer, and the locks are empty words.
"""

from __future__ import annotations

import uuid

from clusters.agent_errors import stale_assignment, stale_epoch
from clusters.models import Assignment, Node
from jobs.models import Job


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


def lock_session(node_pk: uuid.UUID, epoch: int) -> Node:
    """The node, locked, if `epoch` is its session's; else the refusal."""
    node = lock_node(node_pk)
    if node.epoch != epoch or epoch < 1:
        raise stale_epoch(epoch, node.epoch)
    return node


def lock_own(node: Node, pk: uuid.UUID, fence: int) -> Assignment:
    """The node's assignment with that fence, locked; refused if unknown, foreign or stale."""
    try:
        assignment = lock_assignment(pk)
    except Assignment.DoesNotExist:
        raise stale_assignment(f"there is no assignment {pk} on this node") from None
    if assignment.node_id != node.pk:
        raise stale_assignment(f"there is no assignment {pk} on this node")
    if assignment.fence != fence:
        raise stale_assignment(f"assignment {pk} has fence {assignment.fence}, not {fence}")
    return assignment
