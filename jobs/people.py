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


@transaction.atomic
def person_saved(
    name: str,
    *,
    teams: Iterable[Team] = (),
    role: TeamRole | None = None,
    operator: bool | None = None,
    sees_costs: bool = False,
    enable: bool = False,
) -> str | None:
    """Create a person or change their rights; return a new person's password.

    `role`: theirs in these teams; without it they keep the one they have, and begin as members.
    `enable`: let them log in again if they are disabled.
    """
    user = User.objects.select_for_update().filter(username=name).first()
    password, was = None, _rights(user) if user is not None else None
    if user is None:
        password = secrets.token_urlsafe(12)
        user = User(username=name)
        user.set_password(password)
        user.full_clean()
        user.save()
        make_one_time(user)
    if operator is not None:
        user.is_staff = operator
    user.is_active = user.is_active or enable
    user.save()
    for team in teams:
        role_given(team, user, role)
    if sees_costs:
        app, name = SEE_ALL_COSTS
        permission = Permission.objects.get(content_type__app_label=app, codename=name)
        user.user_permissions.add(permission)
    record_values("person.add" if was is None else "person.change", user, _rights(user), was)
    return password


def _rights(user: User) -> dict[str, Any]:
    app, name = SEE_ALL_COSTS
    sees = user.user_permissions.filter(content_type__app_label=app, codename=name).exists()
    return {"operator": user.is_staff, "active": user.is_active, "sees_costs": sees}


@transaction.atomic
def password_reset(user: User) -> str:
    """Give a person a new one-time password, which ends their tokens and sessions; return it."""
    password = secrets.token_urlsafe(12)
    user.set_password(password)
    user.save(update_fields=["password"])
    make_one_time(user)
    record("person.password", user)
    return password


@transaction.atomic
def role_given(team: Team, user: User, role: TeamRole | None = None) -> Membership:
    """Let a person into a team, or change their role there; without one, as in `person_saved`."""
    row = Membership.objects.select_for_update().filter(team=team, user=user).first()
    was = {"role": row.role} if row is not None else None
    row = row or Membership(team=team, user=user)
    row.role = role or row.role
    row.save()
    record_values("member.role" if was else "member.add", user, {"role": row.role}, was, team=team)
    return row


@transaction.atomic
def role_taken(team: Team, user: User) -> bool:
    """Take a person out of a team; return False if they were not in it. Their jobs go on."""
    row = Membership.objects.select_for_update().filter(team=team, user=user).first()
    if row is not None:
        row.delete()
        record("member.remove", user, team=team, old={"role": row.role})
    return row is not None


@transaction.atomic
def person_disabled(user: User) -> int:
    """Disable a person and return how many API tokens ended; sessions end at the next request."""
    User.objects.filter(pk=user.pk).update(is_active=False)
    record_values("person.disable", user, {"active": False}, {"active": user.is_active})
    return tokens_ended(user)


@transaction.atomic
def tokens_ended(user: User | None = None) -> int:
    """End all API tokens of a person, or of everybody; return their number."""
    tokens = AuthToken.objects.all() if user is None else AuthToken.objects.filter(user=user)
    return end_tokens(tokens)


@transaction.atomic
def team_saved(name: str, values: Mapping[str, Any], by: User | None = None) -> Team:
    """Create a team or set these fields; triggers rounds, and notes changes in its history.

    `by`: None on the command line, whose changes go into the log. Raises ValidationError.
    """
    team = Team.objects.select_for_update().filter(name=name).first() or Team(name=name)
    fields = [] if team.pk is None else changed(team, values)
    was = None if team.pk is None else {name: getattr(team, name) for name in values}
    for field, value in values.items():
        setattr(team, field, value)
    team.full_clean()
    team.save()
    action = "team.add" if was is None else "team.change"
    record_values(action, team, values, was, team=team, by=by)
    if fields:
        log.info("team %s changed: %s", team.name, "; ".join(fields))
        team_changed(team)
        if by is not None:
            note_change(team, by, fields)
    return team


def team_changed(team: Team) -> None:
    """Trigger rounds of clusters with jobs of the team."""
    alive = Job.objects.filter(team=team).exclude(state__in=ENDED)
    for cluster in Cluster.objects.filter(pk__in=alive.values("cluster")):
        request_reschedule(cluster, Reason.OPERATOR)


def teams_named(names: Sequence[str]) -> list[Team]:
    """Teams by these names; ValidationError for an unknown one."""
    teams = {team.name: team for team in Team.objects.all()}
    for name in names:
        if name not in teams:
            known = ", ".join(teams) or "none yet"
            raise ValidationError(
                f"there is no team {name!r} (known: {known}); make it with set_team"
            )
    return [teams[name] for name in names]
