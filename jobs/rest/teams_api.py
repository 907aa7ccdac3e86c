"""REST of teams: their settings, members with roles, and secrets."""

from typing import Any, cast

from django.contrib.auth.models import User
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound, PermissionDenied, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.web.operators import is_operator
from controlplane.web.rest.bodies import OnlySettable, check_names
from controlplane.web.rest.strict import StrictView
from jobs.models import Membership, Secret, Team, TeamRole
from jobs.people import remove_member, save_team, set_role
from jobs.roles import check_role
from jobs.secrets import delete_secret, set_secret
from jobs.selectors import teams_of
from jobs.submission.validation import JobInvalid


class TeamMemberSerializer(OnlySettable, serializers.ModelSerializer[Membership]):
    """A person in a team, and their role there."""

    username = serializers.CharField(source="user.username", read_only=True)

    class Meta:
        model = Membership
        fields = ["username", "role"]


class TeamSerializer(serializers.ModelSerializer[Team]):
    """A team and who is in it, with which role."""

    members: serializers.SlugRelatedField[User] = serializers.SlugRelatedField(
        many=True, read_only=True, slug_field="username"
    )
    roles = TeamMemberSerializer(many=True, read_only=True, source="membership_set")

    class Meta:
        model = Team
        fields = ["name", "weight", "order", *Team.LIMITS, "members", "roles"]


class TeamSettings(OnlySettable, serializers.ModelSerializer[Team]):
    """Settings of a team that operators change."""

    class Meta:
        model = Team
        fields = ["weight", "order", *Team.LIMITS]


class SecretSerializer(serializers.ModelSerializer[Secret]):
    """A secret's name, never its value."""

    class Meta:
        model = Secret
        fields = ["name", "updated_at"]


class SecretValue(serializers.Serializer[Any]):
    """A secret's new value."""

    value = serializers.CharField(write_only=True)


class TeamsView(StrictView):
    """The caller's teams; for operators all."""

    @extend_schema(responses=TeamSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The teams with their members."""
        teams = teams_of(request.user).prefetch_related("members", "membership_set__user")
        return Response(TeamSerializer(teams, many=True).data)


class TeamView(StrictView):
    """One of the caller's teams; operators set its weight, order and limits."""

    @extend_schema(responses=TeamSerializer)
    def get(self, request: Request, team: str) -> Response:
        """The team with its members and their roles."""
        return Response(TeamSerializer(_team(request, team)).data)

    @extend_schema(request=TeamSettings, responses=TeamSerializer)
    def patch(self, request: Request, team: str) -> Response:
        """Change its fair share, how its own jobs share that, or its limits (operators)."""
        row = _team(request, team)
        if not is_operator(request.user):
            raise PermissionDenied("only operators may change a team")
        settings = TeamSettings(row, data=request.data, partial=True)
        settings.is_valid(raise_exception=True)
        saved = save_team(row.name, settings.validated_data, cast(User, request.user))
        return Response(TeamSerializer(saved).data)


class SecretsView(StrictView):
    """The secrets of a team."""

    @extend_schema(responses=SecretSerializer(many=True))
    def get(self, request: Request, team: str) -> Response:
        """Their names."""
        secrets = _team(request, team).secrets.defer("ciphertext")
        return Response(SecretSerializer(secrets, many=True).data)


class MemberView(StrictView):
    """One person in one of the caller's teams; operators let people in, and out."""

    @extend_schema(request=TeamMemberSerializer, responses=TeamMemberSerializer)
    def put(self, request: Request, team: str, username: str) -> Response:
        """Give the person this role in the team, and let them in if need be (operators)."""
        row = self._team(request, team)
        membership = TeamMemberSerializer(data=request.data)
        membership.is_valid(raise_exception=True)
        role = membership.validated_data.get("role")
        member = set_role(row, self._person(username), role)
        return Response(TeamMemberSerializer(member).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, team: str, username: str) -> Response:
        """Take the person out of the team (operators)."""
        row = self._team(request, team)
        if not remove_member(row, self._person(username)):
            raise NotFound(f"{username} is not in team {team}")
        return Response(status=status.HTTP_204_NO_CONTENT)

    @staticmethod
    def _team(request: Request, name: str) -> Team:
        """Return the team of this name, if the caller may change who is in it."""
        team = _team(request, name)
        if not is_operator(request.user):
            raise PermissionDenied("only operators may change who is in a team")
        return team

    @staticmethod
    def _person(name: str) -> User:
        """Return the user of this name, or answer 404."""
        user = None if "\0" in name else User.objects.filter(username=name).first()
        if user is None:
            raise NotFound(f"there is nobody called {name}")
        return user


class SecretView(StrictView):
    """One secret of a team, which maintainers change."""

    @extend_schema(request=SecretValue, responses={204: None})
    def put(self, request: Request, team: str, name: str) -> Response:
        """Make or replace it (maintainers)."""
        row = _maintained(request, team)
        body = request.data if isinstance(request.data, dict) else {}
        check_names(body, {"value"})
        try:
            set_secret(row, name, body.get("value"))
        except JobInvalid as error:
            raise ValidationError(cast("dict[str, Any]", error.fields)) from None
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, team: str, name: str) -> Response:
        """Remove it; jobs that refer to it can no longer start (maintainers)."""
        if not delete_secret(_maintained(request, team), name):
            raise NotFound(f"team {team} has no secret of that name")
        return Response(status=status.HTTP_204_NO_CONTENT)


def _maintained(request: Request, name: str) -> Team:
    """Return the team of this name, if the caller maintains it."""
    team = _team(request, name)
    check_role(request.user, team, TeamRole.MAINTAINER)
    return team


def _team(request: Request, name: str) -> Team:
    """Return the caller's team of this name, or answer 404."""
    team = teams_of(request.user).filter(name=name).first()
    if team is None:
        raise NotFound(f"there is no team {name} that you are in")
    return team
