"""REST of the caller and their API tokens."""

from datetime import datetime, timedelta
from typing import Any, cast

from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError as DjangoValidationError
from django.db import transaction
from django.http import HttpRequest
from drf_spectacular.utils import extend_schema, extend_schema_field
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

from controlplane.audit.record import record
from controlplane.web.credentials import tokens
from controlplane.web.credentials.passwords import CHANGE_IT, SESSION_KEY, check_new, is_one_time
from controlplane.web.models import Scope
from controlplane.web.operators import is_operator
from controlplane.web.rest.bodies import OnlySettable
from controlplane.web.rest.strict import StrictView
from jobs.models import TeamRole
from jobs.roles import roles_of
from jobs.selectors import teams_of


class MeSerializer(serializers.Serializer[Any]):
    """The caller."""

    username = serializers.CharField()
    operator = serializers.BooleanField()
    teams = serializers.ListField(child=serializers.CharField())
    roles = serializers.DictField(
        child=serializers.ChoiceField(TeamRole.choices), help_text="The caller's roles by team"
    )


class MeView(StrictView):
    """The caller."""

    @extend_schema(responses=MeSerializer)
    def get(self, request: Request) -> Response:
        """Name, teams with the roles there, and whether an operator."""
        user = request.user
        return Response(
            {
                "username": user.get_username(),
                "operator": is_operator(user),
                "teams": list(teams_of(user).values_list("name", flat=True)),
                "roles": roles_of(user),
            }
        )


class Login(OnlySettable, serializers.Serializer[Any]):
    """Name and password; scope and hours of validity of the token. A new password replaces the old
    one, as it must a one-time password.
    """

    username = serializers.CharField(max_length=150)
    password = serializers.CharField(max_length=500, trim_whitespace=False, write_only=True)
    new_password = serializers.CharField(
        max_length=500, trim_whitespace=False, write_only=True, required=False
    )
    scope = serializers.ChoiceField(Scope.choices, default=Scope.OPERATE)
    valid_h = serializers.FloatField(default=None, min_value=0.001)

    def validate_valid_h(self, hours: float | None) -> timedelta:
        """Return the time for which the token is valid."""
        try:
            return tokens.lifetime(hours)
        except tokens.LifetimeError as error:
            raise ValidationError(str(error)) from None

    def validate_username(self, name: str) -> str:
        """Resolve variants of a name as pages do."""
        return User.normalize_username(name)


class TokenSerializer(serializers.Serializer[Any]):
    """A token, by its first characters."""

    id = serializers.CharField(source="token_key")
    scope = serializers.SerializerMethodField()
    created = serializers.DateTimeField()
    expiry = serializers.DateTimeField()
    last_used_at = serializers.SerializerMethodField()

    def get_scope(self, token: AuthToken) -> Scope:
        return tokens.scope_of(token)

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_last_used_at(self, token: AuthToken) -> datetime | None:
        """When it was last used, to five minutes."""
        return tokens.last_used_at(token)


class NewTokenSerializer(TokenSerializer):
    """A token, whole: shown this once."""

    token = serializers.CharField()


class TokensView(StrictView):
    """POST is a login and needs no token; the rest is the caller's own."""

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Use name and password alone at login, so that an old token does not interfere."""
        request: HttpRequest | Request | None = getattr(self, "request", None)
        if request is not None and request.method == "POST":
            return []
        return super().get_authenticators()

    def get_permissions(self) -> list[BasePermission]:
        """Let everybody log in."""
        if self.request is not None and self.request.method == "POST":
            return [AllowAny()]
        return cast("list[BasePermission]", super().get_permissions())

    def get_authenticate_header(self, request: Request) -> str:
        """Make failed logins 401."""
        return "Bearer"

    @extend_schema(responses=TokenSerializer(many=True))
    def get(self, request: Request) -> Response:
        return Response(TokenSerializer(tokens.tokens_of(_user(request)), many=True).data)

    @extend_schema(request=Login, responses={201: NewTokenSerializer}, auth=[])
    def post(self, request: Request) -> Response:
        """Log in: a new token for name and password."""
        login = Login(data=request.data)
        login.is_valid(raise_exception=True)
        fields = login.validated_data
        password = fields["password"]
        user = authenticate(request._request, username=fields["username"], password=password)
        if user is None:
            raise AuthenticationFailed(
                "name or password is wrong, or the account is locked after too many tries"
            )
        _change_password(user, password, fields.get("new_password"))
        issued = tokens.issue(user, Scope(fields["scope"]), fields["valid_h"])
        body = {**TokenSerializer(issued.row).data, "token": issued.token}
        return Response(body, status=status.HTTP_201_CREATED)


def _change_password(user: User, old: str, new: str | None) -> None:
    """Change the password if a new one is given; a one-time password must be changed."""
    if new is None:
        if is_one_time(user):
            raise PermissionDenied(f"{CHANGE_IT}, or send a new_password with it", code=SESSION_KEY)
        return
    try:
        check_new(user, old, new)
    except DjangoValidationError as error:
        raise ValidationError({"new_password": error.messages}) from None
    user.set_password(new)
    with transaction.atomic():
        user.save(update_fields=["password"])
        record("person.password", user, by=user)


class TokenView(StrictView):
    """One of the caller's tokens."""

    @extend_schema(responses={204: None})
    def delete(self, request: Request, key: str) -> Response:
        """Revoke it."""
        own = tokens.tokens_of(_user(request)).filter(token_key=key)
        if not tokens.end_tokens(own):
            raise NotFound("you have no such token")
        return Response(status=status.HTTP_204_NO_CONTENT)


class CurrentTokenView(StrictView):
    """The token of this request."""

    write_scope = Scope.READ

    @extend_schema(responses={204: None})
    def delete(self, request: Request) -> Response:
        """Revoke it: log out."""
        if not isinstance(request.auth, AuthToken):
            raise NotFound("this request came without a token")
        tokens.end_tokens(AuthToken.objects.filter(pk=request.auth.pk))
        return Response(status=status.HTTP_204_NO_CONTENT)


def _user(request: Request) -> User:
    """Return the caller, who is logged in."""
    return cast(User, request.user)
