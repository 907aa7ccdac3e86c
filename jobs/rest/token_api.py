"""REST: the caller's API tokens. A login by name and password gives one; only its hash is kept."""

from __future__ import annotations

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
from rest_framework.exceptions import AuthenticationFailed, NotFound
from rest_framework.permissions import AllowAny, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView


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
        """Login uses name and password alone, so that an old token does not interfere."""
        request: HttpRequest | Request | None = getattr(self, "request", None)
        return (
            [] if request is not None and request.method == "POST" else super().get_authenticators()
        )

    def get_permissions(self) -> list[BasePermission]:
        """Anybody may try to log in."""
        if self.request is not None and self.request.method == "POST":
            return [AllowAny()]
        return cast("list[BasePermission]", super().get_permissions())

    def get_authenticate_header(self, request: Request) -> str:
        """Failed logins are 401 too."""
        return "Bearer"

    @extend_schema(responses=TokenSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The caller's tokens."""
        return Response(TokenSerializer(_tokens(request), many=True).data)

    @extend_schema(request=Login, responses={201: NewTokenSerializer}, auth=[])
    def post(self, request: Request) -> Response:
        """Log in: a new token for name and password."""
        login = Login(data=request.data)
        login.is_valid(raise_exception=True)
        given = login.validated_data
        user = authenticate(
            request._request, username=given["username"], password=given["password"]
        )
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
    return cast(
        "QuerySet[AuthToken]",
        AuthToken.objects.filter(user=cast(User, request.user)).order_by("-created"),
    )
