"""Defaults of REST views: bearer tokens, permissions, bounded pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.contrib.auth.models import User
from django.utils import timezone
from knox.auth import TokenAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.pagination import LimitOffsetPagination
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from controlplane.web.operators import is_operator

if TYPE_CHECKING:  # APIView reads these defaults while its module is loaded
    from rest_framework.views import APIView


class BearerAuthentication(TokenAuthentication):  # type: ignore[misc]  # the library has no types
    """knox's tokens; one that is no text is as wrong as any other."""

    def authenticate_credentials(self, token: bytes) -> Any:
        if not token.isascii() or b"\0" in token:
            raise AuthenticationFailed("Invalid token.")
        return super().authenticate_credentials(token)

    def _cleanup_token(self, auth_token: Any) -> bool:
        """Return True if it has expired; knox reads all the user's tokens for that."""
        return auth_token.expiry is not None and auth_token.expiry < timezone.now()


class OperatorsAct(BasePermission):
    """Reading for everybody who is logged in, the rest for operators."""

    message = "only operators may do this"

    def has_permission(self, request: Request, view: APIView) -> bool:
        return request.method in SAFE_METHODS or is_operator(cast(User, request.user))


class OperatorsOnly(BasePermission):
    message = "only operators may see this"

    def has_permission(self, request: Request, view: APIView) -> bool:
        return is_operator(cast(User, request.user))


LARGEST_OFFSET = 2**40


class BoundedPagination(LimitOffsetPagination):
    """DRF's limit and offset pages with bounded numbers."""

    max_limit = 1000

    def get_offset(self, request: Request) -> int:
        return min(super().get_offset(request), LARGEST_OFFSET)
