"""Builders of the jobs part: job data as people send it, placements as rounds commit them, output
as agents ship it.
"""

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone
from knox.models import AuthToken
from rest_framework.test import APIClient

from clusters.models import Node
from controlplane.web.models import TokenGrant
from jobs.models import Assignment, AssignmentSlot, Job, LogChunk
from loadmaster.protocol import AssignmentState


def job_fields(**fields: Any) -> dict[str, Any]:
    """The least a job says, with these fields put over it; None leaves one out."""
    data: dict[str, Any] = {
        "name": "digits",
        "command": ["python", "train.py"],
        "steps": 100,
        **fields,
    }
    return {name: value for name, value in data.items() if value is not None}


def a_placement(
    job: Job,
    node: Node,
    state: AssignmentState = AssignmentState.RUNNING,
    *,
    ended_ago_s: float | None = None,
    **values: Any,
) -> Assignment:
    """An assignment of the job on the node's first devices, at the job's next fence; one that is
    live holds its slots.
    """
    job.fence += 1
    job.save(update_fields=["fence"])
    ended_at = None if ended_ago_s is None else timezone.now() - timedelta(seconds=ended_ago_s)
    assignment = Assignment.objects.create(
        job=job, node=node, fence=job.fence, state=state, ended_at=ended_at, **values
    )
    for device in node.devices.all()[: assignment.gpus]:
        AssignmentSlot.objects.create(assignment=assignment, device=device, live=ended_at is None)
    return assignment


def output(assignment: Assignment, *pieces: bytes, stream: str = "stdout") -> None:
    """Pieces of output that follow what the assignment has."""
    last = assignment.log_chunks.filter(stream=stream).order_by("-offset").first()
    offset = last.offset + last.size if last else 0
    for piece in pieces:
        LogChunk.objects.create(
            assignment=assignment, stream=stream, offset=offset, size=len(piece), data=piece
        )
        offset += len(piece)


def kept_output(assignment: Assignment, stream: str = "stdout") -> bytes:
    """Output that is kept, marks included."""
    chunks = assignment.log_chunks.filter(stream=stream).order_by("offset")
    return b"".join(chunk.content for chunk in chunks)


def a_token(user: User) -> str:
    """A token of the user's for everything, just used: the next request notes no use of it."""
    row, token = AuthToken.objects.create(user)
    TokenGrant.objects.create(token=row, last_used_at=timezone.now())
    return str(token)


def api(user: User | None = None, token: str = "") -> APIClient:
    """A client of the REST API that sends a user's token, or none."""
    client = APIClient()
    if user is not None:
        token = a_token(user)
    if token:
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    return client
