"""Rows about people's credentials, which complete the libraries' own tables."""

from django.conf import settings
from django.db import models


class Scope(models.TextChoices):
    """Scope of a token; each scope includes those before it."""

    READ = "read", "reading"
    SUBMIT = "submit", "reading and submitting"
    OPERATE = "operate", "everything you may do"

    def includes(self, other: "Scope") -> bool:
        """Return True if a token of this scope may do what the other scope permits."""
        order = list(Scope)
        return order.index(self) >= order.index(other)


class TokenGrant(models.Model):
    """Scope and last use of an API token. An older token without a row has the widest scope."""

    token = models.OneToOneField(
        "knox.AuthToken", on_delete=models.CASCADE, primary_key=True, related_name="grant"
    )
    scope = models.CharField(max_length=10, choices=Scope.choices, default=Scope.OPERATE)
    last_used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.scope


class OneTimePassword(models.Model):
    """Mark of a person whose password was set by somebody else, and who must change it."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="+"
    )

    def __str__(self) -> str:
        return f"of user {self.user_id}"
