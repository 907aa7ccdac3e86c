"""People and teams, as operators set them up from the command line."""

import secrets
from collections.abc import Iterable, Sequence

from django.contrib.auth.models import Permission, User
from django.core.exceptions import ValidationError
from django.db import transaction
from knox.models import AuthToken

from clusters.events import request_reschedule
from clusters.models import Cluster, Reason
from jobs.lifecycle import ENDED
from jobs.models import Job, Membership, Team

SEE_ALL_COSTS = ("accounting", "see_all_costs")


@transaction.atomic
def person_saved(
    name: str, *, teams: Iterable[Team] = (), operator: bool | None = None, sees_costs: bool = False
) -> str | None:
    """Create a person or extend their rights; return a new person's password."""
    user = User.objects.filter(username=name).first()
    password = None
    if user is None:
        password = secrets.token_urlsafe(12)
        user = User(username=name)
        user.set_password(password)
        user.full_clean()
    if operator is not None:
        user.is_staff = operator
    user.is_active = True
    user.save()
    for team in teams:
        Membership.objects.get_or_create(team=team, user=user)
    if sees_costs:
        app, name = SEE_ALL_COSTS
        permission = Permission.objects.get(content_type__app_label=app, codename=name)
        user.user_permissions.add(permission)
    return password


@transaction.atomic
def person_disabled(user: User) -> int:
    """Disable a person and return how many API tokens ended; sessions end at the next request."""
    User.objects.filter(pk=user.pk).update(is_active=False)
    return tokens_ended(user)


def tokens_ended(user: User | None = None) -> int:
    """End all API tokens of a person, or of everybody; return their number."""
    tokens = AuthToken.objects.all() if user is None else AuthToken.objects.filter(user=user)
    return int(tokens.delete()[0])


@transaction.atomic
def team_saved(name: str, weight: float | None = None, order: str | None = None) -> Team:
    """Create a team or change its weight or order; triggers rounds. Raises ValidationError."""
    team = Team.objects.filter(name=name).first() or Team(name=name)
    if weight is not None:
        team.weight = weight
    if order is not None:
        team.order = order
    team.full_clean()
    team.save()
    if weight is not None or order is not None:
        team_changed(team)
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
