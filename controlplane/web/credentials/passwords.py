"""One-time passwords, and what ends when a password is changed."""

from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.contrib.auth.signals import user_logged_in
from django.core.exceptions import ValidationError
from django.dispatch import receiver
from django.http import HttpRequest
from knox.models import AuthToken

from controlplane.web.models import OneTimePassword

SESSION_KEY = "one_time_password"
"""Key of a session whose login used a one-time password."""

CHANGE_IT = "this password was given to you for one login; change it on the page /password/"
"""Message to a person with a one-time password."""


class EndOfTokens:
    """Password validator that refuses no password: it ends a person's tokens at a change.

    Django calls it after every change, by page, administration and command, but not when a hash is
    renewed. Sessions end by themselves.
    """

    def validate(self, password: str, user: User | None = None) -> None:
        pass

    def password_changed(self, password: str, user: User) -> None:
        """End the person's tokens; the new password is no one-time password."""
        AuthToken.objects.filter(user=user).delete()
        OneTimePassword.objects.filter(user=user).delete()

    def get_help_text(self) -> str:
        return "A new password ends your API tokens."


def check_new(user: User, old: str, new: str) -> None:
    """Raise ValidationError for a weak password, or the old one, that its owner has chosen."""
    if new == old:
        raise ValidationError("must be another one than before")
    validate_password(new, user)


def make_one_time(user: User) -> None:
    """Have a person change the password that they have just been given."""
    OneTimePassword.objects.get_or_create(user=user)


def is_one_time(user: User) -> bool:
    """Return True if the person must change their password first."""
    return OneTimePassword.objects.filter(user=user).exists()


@receiver(user_logged_in)
def _note_in_session(sender: object, request: HttpRequest, user: User, **_: Any) -> None:
    """Note in the session of a login that the password is for one login."""
    if hasattr(request, "session") and is_one_time(user):
        request.session[SESSION_KEY] = True
