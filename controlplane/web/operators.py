"""Operators, who see and act on everything."""

from django.contrib.auth.models import AnonymousUser, User


def is_operator(user: User | AnonymousUser) -> bool:
    """Return True for an operator: Django's staff."""
    return bool(user.is_active and user.is_staff)
