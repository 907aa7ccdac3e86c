"""Locks that an agent's call takes on its own session and assignments."""

from __future__ import annotations

import uuid

from clusters.agent_calls import stale_assignment, stale_epoch
from clusters.models import Node
from jobs.models import Assignment
from jobs.moves import lock_assignment, lock_node


def lock_session(node_pk: uuid.UUID, epoch: int) -> Node:
    """The node, locked, if `epoch` is its session's; else the refusal."""
    node = lock_node(node_pk)
    if node.epoch != epoch or epoch < 1:
        raise stale_epoch(epoch, node.epoch)
    return node


def lock_own(node: Node, pk: uuid.UUID, fence: int) -> Assignment:
    """The node's assignment with that fence, locked; a refusal for another node's, an unknown one,
    or another fence.
    """
    try:
        assignment = lock_assignment(pk)
    except Assignment.DoesNotExist:
        raise stale_assignment(f"there is no assignment {pk} on this node") from None
    if assignment.node_id != node.pk:
        raise stale_assignment(f"there is no assignment {pk} on this node")
    if assignment.fence != fence:
        raise stale_assignment(f"assignment {pk} has fence {assignment.fence}, not {fence}")
    return assignment
