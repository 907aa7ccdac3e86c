"""Seats of a batch job: its hosts, and whose ends decide what becomes of the job.

By default its process runs on the first seat's node alone. Agents hold the other seats for it
without a process, until the server asks for them back because the first one has ended.
"""

from collections.abc import Sequence

from jobs.models import Assignment, Job
from loadmaster.protocol import CONTAINER, AssignmentState, Host


def is_held(assignment: Assignment) -> bool:
    """Return True for a seat without a process of its own."""
    return assignment.rank > 0 and assignment.job.runs_on_first_seat


def hosts_of(assignment: Assignment) -> tuple[Host, ...]:
    """Hosts of its launch, in the order of the seats."""
    launch = Assignment.objects.filter(job=assignment.job_id, fence=assignment.fence)
    seats = launch.select_related("node", "job").order_by("rank")
    return tuple(Host(seat.node.name, _address(seat), seat.units) for seat in seats)


def _address(seat: Assignment) -> str:
    """Address by which other nodes reach it; empty if its agent named none."""
    address = seat.node.address
    if CONTAINER in address and is_held(seat):
        return ""  # containers find one another by name, and a held seat has none
    return address.replace(CONTAINER, f"lm-{seat.pk}-{seat.fence}")


def ends_launch(assignment: Assignment, job: Job) -> bool:
    """Return True if the other seats of its launch are to end now that it has."""
    is_process = job.runs_on_first_seat and assignment.rank == 0
    return is_process or assignment.state != AssignmentState.SUCCEEDED


def deciding(job: Job, launch: Sequence[Assignment]) -> Sequence[Assignment]:
    """Seats whose ends decide about the job, the first one first: of a held one only its loss.

    A held seat that was asked for, or that outlived a process that did its work, tells nothing.
    """
    if not job.runs_on_first_seat:
        return launch
    first, *held = launch
    done = first.state == AssignmentState.SUCCEEDED
    return [first, *(seat for seat in held if seat.desired == "run" and not done)]
