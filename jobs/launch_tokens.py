"""Tokens of launches: by one the script of a job acts as its user, for as long as it runs.

A token is derived from the server's key and the launch; the database holds none of it.
"""

import re
from uuid import UUID

from django.utils.crypto import constant_time_compare, salted_hmac

from jobs.assignment_lifecycle import LIVE
from jobs.models import Assignment

_TOKEN = re.compile(r"launch\.([0-9a-f]{32})\.([0-9a-f]{64})")


def launch_token(assignment: Assignment) -> str:
    """Token of the launch that an assignment is part of."""
    return f"launch.{assignment.pk.hex}.{_seal(assignment)}"


def _seal(assignment: Assignment) -> str:
    launch = f"{assignment.pk}:{assignment.fence}"
    return salted_hmac("loadmaster.launch", launch, algorithm="sha256").hexdigest()


def launch_of(token: str) -> Assignment | None:
    """Return the live assignment whose token this is; None if it is none's, or that has ended."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        return None
    live = Assignment.objects.filter(pk=UUID(match[1]), state__in=sorted(map(str, LIVE)))
    assignment = live.select_related("job__user", "job__team", "job__cluster").first()
    if assignment is None or not constant_time_compare(_seal(assignment), match[2]):
        return None
    return assignment
