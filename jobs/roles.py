"""Rights of people in teams: the one rule, which pages, REST, administration and services ask.

A viewer sees what is the team's and changes nothing. A member submits, and changes what is their
own. A maintainer also changes team-mates' jobs and studies, and the team's secrets. Operators
change everything. Roles are read from the database at every question.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet

from controlplane.web.operators import is_operator
from jobs.models import Membership, Team, TeamRole

LADDER = tuple(TeamRole)
"""Roles from the least to the most; each includes those before it."""


class RoleRefused(PermissionDenied):
    """Change that the person's role does not permit; the text says which role does."""


class Owned(Protocol):
    """Thing of a person, for themselves or (with a team) for the team to see."""

    @property
    def user_id(self) -> int: ...
    @property
    def team(self) -> Team | None: ...


def roles_of(user: User | AnonymousUser) -> Mapping[str, TeamRole]:
    """Roles of a person by the teams' names."""
    rows = Membership.objects.filter(user=user.pk).order_by("team__name")
    return {name: TeamRole(role) for name, role in rows.values_list("team__name", "role")}


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights of a person in any team: to submit to it, to read the audit of its changes."""

    submits: bool
    audits: bool


def rights_of(user: User | AnonymousUser) -> Rights:
    """Return what the person may do somewhere."""
    held = set(roles_of(user).values())
    is_maintainer = is_operator(user) or TeamRole.MAINTAINER in held
    return Rights(is_maintainer or TeamRole.MEMBER in held, is_maintainer)


def teams_with(user: User | AnonymousUser, least: TeamRole) -> QuerySet[Team]:
    """Teams in which a person has that role or a greater one, for operators all."""
    if is_operator(user):
        return Team.objects.all()
    enough = LADDER[LADDER.index(least) :]
    return Team.objects.filter(membership__user=user.pk, membership__role__in=enough)


def teams_to_submit_to(user: User | AnonymousUser) -> QuerySet[Team]:
    """Teams that a person may submit to: members do."""
    return teams_with(user, TeamRole.MEMBER)


def lacks(user: User | AnonymousUser, team: Team, least: TeamRole) -> str:
    """Sentence on the role that a person lacks in a team; empty if they have it."""
    if is_operator(user):
        return ""
    row = Membership.objects.filter(user=user.pk, team=team).values_list("role", flat=True).first()
    if row is not None and LADDER.index(TeamRole(row)) >= LADDER.index(least):
        return ""
    who = f"you are its {row}" if row else "you are not in it"
    return f"this needs the role {least} in team {team}, and {who}; ask an operator for it"


def refusal(user: User | AnonymousUser, thing: Owned) -> str:
    """Sentence on why a person may not change a job or study; empty if they may."""
    is_own = thing.user_id == user.pk
    if thing.team is not None:
        return lacks(user, thing.team, TeamRole.MEMBER if is_own else TeamRole.MAINTAINER)
    return "" if is_own or is_operator(user) else "only its owner may change it"


def check_change(user: User | AnonymousUser, thing: Owned) -> None:
    """Raise RoleRefused unless this person may change this job or study."""
    if said := refusal(user, thing):
        raise RoleRefused(said)


def check_role(user: User | AnonymousUser, team: Team, least: TeamRole) -> None:
    """Raise RoleRefused unless this person has that role in the team, or a greater one."""
    if said := lacks(user, team, least):
        raise RoleRefused(said)
