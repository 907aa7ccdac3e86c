"""Permissions of REST calls."""

from __future__ import annotations

from typing import cast

from django.contrib.auth.models import User
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from controlplane.web.operators import is_operator


class OperatorsAct(BasePermission):
    """Reading is for everybody who is logged in, the rest for operators."""

    message = "only operators may do this"

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Whether this request may go on."""
        return request.method in SAFE_METHODS or is_operator(cast(User, request.user))


class OperatorsOnly(BasePermission):
    """For operators."""

    message = "only operators may see this"

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Whether this request may go on."""
        return is_operator(cast(User, request.user))
