"""People and teams, as operators set them up from the command line."""

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.contrib.auth.models import Permission, User
from django.core.exceptions import ValidationError
from django.db import transaction
from knox.models import AuthToken

from clusters.events import request_reschedule
from clusters.models import Cluster, Reason
from controlplane.audit.record import record, record_values
from controlplane.web.credentials.passwords import make_one_time
from controlplane.web.credentials.tokens import end_tokens
from controlplane.web.operators import changed, note_change
from jobs.lifecycle import ENDED
from jobs.models import Job, Membership, Team, TeamRole

log = logging.getLogger(__name__)
SEE_ALL_COSTS = ("accounting", "see_all_costs")
"""App and codename of the permission to see the energy and cost of every team."""


@transaction.atomic
def save_person(
    name: str,
    *,
    teams: Iterable[Team] = (),
    role: TeamRole | None = None,
    operator: bool | None = None,
    sees_costs: bool = False,
    enable: bool = False,
) -> str | None:
    """Create a person or change their rights; return the one-time password of a new person.

    `teams`: teams they join or are in, with this `role`; None keeps a member's role, and makes a
    newcomer a member. `operator`: None changes nothing. `sees_costs`: add this permission.
    `enable`: let them log in again if they are disabled. Raises ValidationError.
    """
    # 1. Find them, or create them with a one-time password.
    user = User.objects.select_for_update().filter(username=name).first()
    password = None
    rights_before = None
    if user is not None:
        rights_before = _rights(user)
    else:
        password = secrets.token_urlsafe(12)
        user = User(username=name)
        user.set_password(password)
        user.full_clean()
        user.save()
        make_one_time(user)

    # 2. Change their rights.
    if operator is not None:
        user.is_staff = operator
    user.is_active = user.is_active or enable
    user.save()
    for team in teams:
        set_role(team, user, role)
    if sees_costs:
        app, codename = SEE_ALL_COSTS
        permission = Permission.objects.get(content_type__app_label=app, codename=codename)
        user.user_permissions.add(permission)

    # 3. Record the change in the audit.
    action = "person.add" if rights_before is None else "person.change"
    record_values(action, user, _rights(user), rights_before)
    return password


def _rights(user: User) -> dict[str, Any]:
    """Return a person's rights as the audit records them."""
    app, codename = SEE_ALL_COSTS
    sees_costs = user.user_permissions.filter(content_type__app_label=app, codename=codename)
    return {
        "operator": user.is_staff,
        "active": user.is_active,
        "sees_costs": sees_costs.exists(),
    }


@transaction.atomic
def reset_password(user: User) -> str:
    """Give a person a new one-time password, which ends their tokens and sessions; return it."""
    password = secrets.token_urlsafe(12)
    user.set_password(password)
    user.save(update_fields=["password"])
    make_one_time(user)
    record("person.password", user)
    return password


@transaction.atomic
def set_role(team: Team, user: User, role: TeamRole | None = None) -> Membership:
    """Let a person into a team, or change their role there; return their membership.

    `role`: None keeps a member's role, and makes a newcomer a member.
    """
    row = Membership.objects.select_for_update().filter(team=team, user=user).first()
    role_before = None
    action = "member.add"
    if row is None:
        row = Membership(team=team, user=user)
    else:
        role_before = {"role": row.role}
        action = "member.role"
    row.role = role or row.role
    row.save()
    record_values(action, user, {"role": row.role}, role_before, team=team)
    return row


@transaction.atomic
def remove_member(team: Team, user: User) -> bool:
    """Take a person out of a team; return False if they were not in it. Their jobs go on."""
    row = Membership.objects.select_for_update().filter(team=team, user=user).first()
    if row is None:
        return False
    row.delete()
    record("member.remove", user, team=team, old={"role": row.role})
    return True


@transaction.atomic
def disable_person(user: User) -> int:
    """Disable a person and return how many API tokens ended; sessions end at the next request."""
    User.objects.filter(pk=user.pk).update(is_active=False)
    record_values("person.disable", user, {"active": False}, {"active": user.is_active})
    return end_tokens_of(user)


@transaction.atomic
def end_tokens_of(user: User | None = None) -> int:
    """End all API tokens of a person, or of everybody; return their number."""
    tokens = AuthToken.objects.all() if user is None else AuthToken.objects.filter(user=user)
    return end_tokens(tokens)


@transaction.atomic
def save_team(name: str, values: Mapping[str, Any], by: User | None = None) -> Team:
    """Create a team, or set these fields of it; return it. Raises ValidationError.

    A change asks for rounds, and is noted in the history of person `by`; None is the command line,
    whose changes are only logged.
    """
    # 1. The team before, and the changed fields in words.
    team = Team.objects.select_for_update().filter(name=name).first() or Team(name=name)
    changes: list[str] = []
    values_before = None
    action = "team.add"
    if team.pk is not None:
        changes = changed(team, values)
        values_before = {field: getattr(team, field) for field in values}
        action = "team.change"

    # 2. Set the fields, and record that in the audit.
    for field, value in values.items():
        setattr(team, field, value)
    team.full_clean()
    team.save()
    record_values(action, team, values, values_before, team=team, by=by)

    # 3. New limits or weights may let other jobs run.
    if changes:
        log.info("team %s changed: %s", team.name, "; ".join(changes))
        request_team_rounds(team)
        if by is not None:
            note_change(team, by, changes)
    return team


def request_team_rounds(team: Team) -> None:
    """Ask for a round of each cluster on which the team has a job that has not ended."""
    jobs = Job.objects.filter(team=team).exclude(state__in=ENDED)
    for cluster in Cluster.objects.filter(pk__in=jobs.values("cluster")):
        request_reschedule(cluster, Reason.OPERATOR)


def teams_by_name(names: Sequence[str]) -> list[Team]:
    """Return the teams of these names, in their order. Raises ValidationError: unknown name."""
    teams = {team.name: team for team in Team.objects.all()}
    for name in names:
        if name not in teams:
            known = ", ".join(teams) or "none yet"
            raise ValidationError(
                f"there is no team {name!r} (known: {known}); make it with set_team"
            )
    return [teams[name] for name in names]
