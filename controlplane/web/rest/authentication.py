"""Who calls the REST API, by token."""

from __future__ import annotations

from typing import Any

from knox.auth import TokenAuthentication
from rest_framework.exceptions import AuthenticationFailed


class BearerAuthentication(TokenAuthentication):  # type: ignore[misc]  # the library has no types
    """knox's tokens; one that is no text at all is as wrong as any other wrong one."""

    def authenticate_credentials(self, token: bytes) -> Any:
        """The token's user and row; AuthenticationFailed if wrong, revoked or expired."""
        if not token.isascii() or b"\0" in token:
            raise AuthenticationFailed("Invalid token.")
        return super().authenticate_credentials(token)
