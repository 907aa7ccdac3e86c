"""Nodes that do not isolate jobs: each serves one team, that of its first job.

What a job leaves there, such as checkpoints, later jobs can read, so a node stays with its team
until an operator gives it to another one.
"""

from clusters.models import Node
from jobs.models import Job


class OtherTeamError(Exception):
    """The node serves another team; the message names it."""


def bind_to_team(node: Node, job: Job) -> None:
    """Let a node that isolates no jobs serve the job's team alone from now on.

    Raises OtherTeamError if it serves another one.
    """
    if not node.serves_one_team or node.team_id == job.team_id:
        return
    if node.team_id is None and Node.objects.filter(pk=node.pk, team=None).update(team=job.team_id):
        node.team_id = job.team_id
        return
    raise OtherTeamError(f"node {node} serves another team, and its agent isolates no jobs")
