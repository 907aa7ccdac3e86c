"""Defaults of REST views: bearer tokens with scopes, permissions, bounded pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from django.contrib.auth.models import User
from django.utils import timezone
from knox.auth import TokenAuthentication
from knox.crypto import hash_token
from knox.models import AuthToken
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied, ValidationError
from rest_framework.pagination import LimitOffsetPagination
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from controlplane.web.credentials.tokens import note_use, scope_of
from controlplane.web.models import Scope
from controlplane.web.operators import is_operator

if TYPE_CHECKING:  # APIView reads these defaults while its module is loaded
    from rest_framework.views import APIView


class BearerAuthentication(TokenAuthentication):  # type: ignore[misc]  # the library has no types
    """Authentication by knox's tokens, which also checks the scope of every request's token."""

    def authenticate(self, request: Request) -> tuple[User, AuthToken] | None:
        authenticated = super().authenticate(request)
        if authenticated is None:
            return None
        user, token = authenticated
        needed = needed_scope(request)
        given = scope_of(token)
        if not given.includes(needed):
            problem = f"this needs a token of the scope {needed}; yours has the scope {given}"
            raise PermissionDenied(problem, code="scope")
        note_use(token)
        return user, token

    def authenticate_credentials(self, token: bytes) -> tuple[User, AuthToken]:
        """Find a token by its hash; knox reads all tokens of its owner for that."""
        try:
            digest = hash_token(token.decode("ascii"))
        except (ValueError, TypeError):  # no text, or none of a token
            raise AuthenticationFailed("Invalid token.") from None
        row = AuthToken.objects.filter(digest=digest).select_related("user", "grant").first()
        if row is None or row.expiry is None or row.expiry < timezone.now():
            raise AuthenticationFailed("Invalid token.")
        return cast("tuple[User, AuthToken]", self.validate_user(row))


def needed_scope(request: Request) -> Scope:
    """Return the scope that a request needs: READ to read, else its view's `write_scope`.

    A view without one needs OPERATE.
    """
    if request.method in SAFE_METHODS:
        return Scope.READ
    return Scope(getattr(request.parser_context["view"], "write_scope", Scope.OPERATE))


class OperatorsAct(BasePermission):
    """Permission to read for everybody who is logged in, and to change for operators."""

    message = "only operators may do this"

    def has_permission(self, request: Request, view: APIView) -> bool:
        return request.method in SAFE_METHODS or is_operator(cast(User, request.user))


class OperatorsOnly(BasePermission):
    """Permission for operators."""

    message = "only operators may see this"

    def has_permission(self, request: Request, view: APIView) -> bool:
        return is_operator(cast(User, request.user))


LARGEST_OFFSET = 2**40
"""Larger offsets count as this one."""

LONGEST_NUMBER = 100
"""Most digits of a number in an address."""


class BoundedPagination(LimitOffsetPagination):
    """DRF's limit and offset pages with bounded numbers; anything but a number is refused."""

    max_limit = 1000

    def get_limit(self, request: Request) -> int:
        """Return the number of rows of a page, at most `max_limit`."""
        limit = _number(request, "limit", least=1) or self.default_limit
        return min(limit or self.max_limit, self.max_limit)

    def get_offset(self, request: Request) -> int:
        """Return the number of rows before the page."""
        return min(_number(request, "offset", least=0) or 0, LARGEST_OFFSET)


def _number(request: Request, name: str, *, least: int) -> int | None:
    """Return the number of a query parameter, None if it is left out. Raises ValidationError."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER):
        raise ValidationError({name: [f"must be a whole number, {least} or more"]})
    number = int(text)
    if number < least:
        raise ValidationError({name: [f"must be {least} or more"]})
    return number


class ShortPages(BoundedPagination):
    """Pages of rows that each hold a list: nodes with their GPUs, kinds with their speeds."""

    max_limit = 200
