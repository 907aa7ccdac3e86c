"""Addresses, ports and tokens by which the ranks of a gang meet.

A gang meets at rank 0's node. Its port is unique among gangs that live at that address, and below
the ports that systems give to outgoing connections.
"""

from collections import defaultdict
from collections.abc import Collection
from uuid import UUID

from django.utils.crypto import salted_hmac

from clusters.models import Node
from jobs.assignment_lifecycle import LIVE
from jobs.models import Assignment
from loadmaster.features import GANG
from loadmaster.protocol import CONTAINER

PORTS = range(29400, 30000, 2)
"""First of the two ports of a gang: the framework's; the next one is the training library's."""


class GangImpossibleError(Exception):
    """Node that cannot run a rank of a gang; the message says what to do."""


class Ports:
    """Ports of gangs launched together; those of live gangs are read once, if needed."""

    def __init__(self) -> None:
        self._taken: dict[str, set[int]] | None = None

    def choose(self, lead: Node, job_id: UUID, fence: int) -> int:
        """Reserve a port at `lead` for a gang's rank 0, another one at each launch if possible."""
        if CONTAINER in lead.address:
            return PORTS[0]
        taken = self._of_living()[lead.address]
        first = (job_id.int + fence) % len(PORTS)
        tried = (PORTS[(first + offset) % len(PORTS)] for offset in range(len(PORTS)))
        port = next((port for port in tried if port not in taken), PORTS[first])
        taken.add(port)
        return port

    def _of_living(self) -> dict[str, set[int]]:
        if self._taken is None:
            self._taken = defaultdict(set)
            leads = Assignment.objects.filter(state__in=LIVE, rank=0, gang_port__isnull=False)
            for address, port in leads.values_list("node__address", "gang_port"):
                self._taken[address].add(port or 0)
        return self._taken


def is_rank(assignment: Assignment) -> bool:
    """Return True for a rank of a gang; a batch job's seats do not meet."""
    return assignment.world_size > 1 and not assignment.job.batch


def rendezvous(assignment: Assignment) -> str:
    """Address host:port where the gang meets; empty without gang or without rank 0's address."""
    if not is_rank(assignment):
        return ""
    leads = Assignment.objects.filter(job=assignment.job_id, fence=assignment.fence, rank=0)
    lead = leads.select_related("node").first()
    if lead is None or lead.gang_port is None or not lead.node.address:
        return ""
    host = lead.node.address.replace(CONTAINER, f"lm-{lead.pk}-{lead.fence}")
    return f"[{host}]:{lead.gang_port}" if ":" in host else f"{host}:{lead.gang_port}"


def token_of(assignment: Assignment) -> str:
    """Secret shared by the ranks of one launch; empty without gang."""
    if not is_rank(assignment):
        return ""
    launch = f"{assignment.job_id}:{assignment.fence}"
    return salted_hmac("loadmaster.gang", launch, algorithm="sha256").hexdigest()


def gpus_of(assignment: Assignment) -> int:
    """GPUs of all ranks; 0 without gang."""
    if not is_rank(assignment):
        return 0
    ranks = Assignment.objects.filter(job=assignment.job_id, fence=assignment.fence)
    return sum(ranks.values_list("gpus", flat=True))


def runs_gangs(features: Collection[str], address: str) -> bool:
    """Return True if an agent can run a rank of a gang; unknown agents are trusted."""
    return not features or (GANG in features and bool(address))


def why_no_gang(node: Node) -> str:
    """Reason why the node cannot run a gang's rank, or empty."""
    if runs_gangs(node.features, node.address):
        return ""
    if GANG not in node.features:
        return f"the agent of node {node} cannot run a rank of a gang: install a newer one"
    return (
        f"node {node} has no address where other ranks reach it: set --address (docs/agent.md,"
        " Gangs)"
    )


def check_gang(assignment: Assignment, node: Node) -> None:
    if is_rank(assignment) and (why := why_no_gang(node)):
        raise GangImpossibleError(why)
