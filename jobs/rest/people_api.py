"""REST of the caller, their API tokens, and teams with their secrets."""

from datetime import timedelta
from typing import Any, cast

from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest
from drf_spectacular.utils import extend_schema
from knox.models import AuthToken
from rest_framework import serializers, status
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import (
    AuthenticationFailed,
    NotFound,
    PermissionDenied,
    ValidationError,
)
from rest_framework.permissions import AllowAny, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.web.operators import is_operator
from controlplane.web.rest.bodies import OnlySettable
from jobs.models import Secret, Team
from jobs.people import team_saved
from jobs.secrets import delete_secret, set_secret
from jobs.selectors import teams_of
from jobs.submission.validation import JobInvalid


class MeSerializer(serializers.Serializer[Any]):
    """The caller."""

    username = serializers.CharField()
    operator = serializers.BooleanField()
    teams = serializers.ListField(child=serializers.CharField())


class TeamSerializer(serializers.ModelSerializer[Team]):
    """A team and who is in it."""

    members: serializers.SlugRelatedField[User] = serializers.SlugRelatedField(
        many=True, read_only=True, slug_field="username"
    )

    class Meta:
        model = Team
        fields = ["name", "weight", "order", "members"]


class TeamSettings(OnlySettable, serializers.ModelSerializer[Team]):
    """Settings of a team that operators change."""

    class Meta:
        model = Team
        fields = ["weight", "order"]


class SecretSerializer(serializers.ModelSerializer[Secret]):
    """A secret's name, never its value."""

    class Meta:
        model = Secret
        fields = ["name", "updated_at"]


class SecretValue(serializers.Serializer[Any]):
    """A secret's new value."""

    value = serializers.CharField(write_only=True)


class MeView(APIView):
    """The caller."""

    @extend_schema(responses=MeSerializer)
    def get(self, request: Request) -> Response:
        """Name, teams, and whether an operator."""
        user, teams = request.user, teams_of(request.user).values_list("name", flat=True)
        me = {"username": user.get_username(), "operator": is_operator(user), "teams": list(teams)}
        return Response(me)


class TeamsView(APIView):
    """The caller's teams; for operators all."""

    @extend_schema(responses=TeamSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The teams with their members."""
        teams = teams_of(request.user).prefetch_related("members")
        return Response(TeamSerializer(teams, many=True).data)


class TeamView(APIView):
    """One of the caller's teams; operators set its weight and order."""

    @extend_schema(responses=TeamSerializer)
    def get(self, request: Request, team: str) -> Response:
        """The team with its members."""
        return Response(TeamSerializer(_team(request, team)).data)

    @extend_schema(request=TeamSettings, responses=TeamSerializer)
    def patch(self, request: Request, team: str) -> Response:
        """Change its fair share, or how its own jobs share that (operators)."""
        row = _team(request, team)
        if not is_operator(request.user):
            raise PermissionDenied("only operators may change a team")
        given = TeamSettings(row, data=request.data, partial=True)
        given.is_valid(raise_exception=True)
        return Response(TeamSerializer(team_saved(row.name, **given.validated_data)).data)


class SecretsView(APIView):
    """The secrets of a team."""

    @extend_schema(responses=SecretSerializer(many=True))
    def get(self, request: Request, team: str) -> Response:
        """Their names."""
        secrets = _team(request, team).secrets.defer("ciphertext")
        return Response(SecretSerializer(secrets, many=True).data)


class SecretView(APIView):
    """One secret of a team."""

    @extend_schema(request=SecretValue, responses={204: None})
    def put(self, request: Request, team: str, name: str) -> Response:
        """Make or replace it."""
        body = request.data if isinstance(request.data, dict) else {}
        try:
            set_secret(_team(request, team), name, body.get("value"))
        except JobInvalid as error:
            raise ValidationError(cast("dict[str, Any]", error.fields)) from None
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, team: str, name: str) -> Response:
        """Remove it; jobs that refer to it can no longer start."""
        if not delete_secret(_team(request, team), name):
            raise NotFound(f"team {team} has no secret of that name")
        return Response(status=status.HTTP_204_NO_CONTENT)


def _team(request: Request, name: str) -> Team:
    team = teams_of(request.user).filter(name=name).first()
    if team is None:
        raise NotFound(f"there is no team {name} that you are in")
    return team


class Login(serializers.Serializer[Any]):
    """Name and password; hours of validity, without end where left out."""

    username = serializers.CharField(max_length=150)
    password = serializers.CharField(max_length=500, trim_whitespace=False, write_only=True)
    valid_h = serializers.FloatField(required=False, min_value=0.001, max_value=24 * 3660)


class TokenSerializer(serializers.Serializer[Any]):
    """A token, by its first characters."""

    id = serializers.CharField(source="token_key")
    created = serializers.DateTimeField()
    expiry = serializers.DateTimeField(allow_null=True)


class NewTokenSerializer(TokenSerializer):
    """A token, whole: shown this once."""

    token = serializers.CharField()


class TokensView(APIView):
    """POST is a login and needs no token; the rest is the caller's own."""

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Use name and password alone at login, so that an old token does not interfere."""
        request: HttpRequest | Request | None = getattr(self, "request", None)
        login = request is not None and request.method == "POST"
        return [] if login else super().get_authenticators()

    def get_permissions(self) -> list[BasePermission]:
        if self.request is not None and self.request.method == "POST":
            return [AllowAny()]
        return cast("list[BasePermission]", super().get_permissions())

    def get_authenticate_header(self, request: Request) -> str:
        """Make failed logins 401."""
        return "Bearer"

    @extend_schema(responses=TokenSerializer(many=True))
    def get(self, request: Request) -> Response:
        return Response(TokenSerializer(_tokens(request), many=True).data)

    @extend_schema(request=Login, responses={201: NewTokenSerializer}, auth=[])
    def post(self, request: Request) -> Response:
        """Log in: a new token for name and password."""
        login = Login(data=request.data)
        login.is_valid(raise_exception=True)
        given = login.validated_data
        name, password = given["username"], given["password"]
        user = authenticate(request._request, username=name, password=password)
        if user is None:
            raise AuthenticationFailed(
                "name or password is wrong, or there were too many wrong tries"
            )
        expiry = timedelta(hours=given["valid_h"]) if "valid_h" in given else None
        row, token = AuthToken.objects.create(user, expiry=expiry)
        body = {"id": row.token_key, "created": row.created, "expiry": row.expiry, "token": token}
        return Response(body, status=status.HTTP_201_CREATED)


class TokenView(APIView):
    """One of the caller's tokens."""

    @extend_schema(responses={204: None})
    def delete(self, request: Request, key: str) -> Response:
        """Revoke it."""
        if not _tokens(request).filter(token_key=key).delete()[0]:
            raise NotFound("you have no such token")
        return Response(status=status.HTTP_204_NO_CONTENT)


class CurrentTokenView(APIView):
    """The token of this request."""

    @extend_schema(responses={204: None})
    def delete(self, request: Request) -> Response:
        """Revoke it: log out."""
        if not isinstance(request.auth, AuthToken):
            raise NotFound("this request came without a token")
        request.auth.delete()
        return Response(status=status.HTTP_204_NO_CONTENT)


def _tokens(request: Request) -> QuerySet[AuthToken]:
    rows = AuthToken.objects.filter(user=request.user).order_by("-created")
    return cast("QuerySet[AuthToken]", rows)
