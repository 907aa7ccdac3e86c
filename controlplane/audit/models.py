"""Rows of the audit, which are added and never changed."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from django.db import models
from django.utils import timezone


class AppendOnlyError(TypeError):
    """Attempt to change or delete a row of the audit."""


class Channel(models.TextChoices):
    """Way by which a change came. CLI: REST with the User-Agent of `loadmaster`."""

    PAGE = "page"
    REST = "rest", "REST"
    ADMIN = "admin", "administration"
    CLI = "cli", "loadmaster"
    COMMAND = "command", "manage.py"


class Entries(models.QuerySet["Entry"]):
    """Rows that only `expire` deletes."""

    def update(self, **values: Any) -> NoReturn:
        raise AppendOnlyError("rows of the audit are never changed")

    def delete(self) -> NoReturn:
        raise AppendOnlyError("rows of the audit are never deleted before their time")

    def expire(self, before: datetime, most: int) -> int:
        """Delete the oldest rows, `most` at once, from before a moment; return their number."""
        expired = self.filter(at__lt=before).order_by("at")
        keys = list(expired.values_list("pk", flat=True)[:most])
        return super(Entries, self.filter(pk__in=keys)).delete()[0]


class Entry(models.Model):
    """Change by a person: who, from where, what, and old and new values, never a secret.

    People, teams and things are kept by name and key, without a reference: the row stays when they
    are deleted. `actor` is the name of a user, or on the server's command line "root (system)".
    """

    at = models.DateTimeField(default=timezone.now, editable=False)
    actor = models.CharField(max_length=160)
    actor_id = models.BigIntegerField(null=True)
    channel = models.CharField(max_length=8, choices=Channel.choices)
    address = models.CharField(max_length=255, blank=True, default="")
    action = models.CharField(max_length=40)
    thing = models.CharField(max_length=200, blank=True, default="")
    thing_id = models.CharField(max_length=64, blank=True, default="")
    team = models.CharField(max_length=63, blank=True, default="")
    team_id = models.BigIntegerField(null=True)
    old = models.JSONField(default=dict)
    new = models.JSONField(default=dict)

    objects = Entries.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["at"], name="audit_at"),
            models.Index(fields=["team_id", "-id"], name="audit_team"),
            models.Index(fields=["actor", "-id"], name="audit_actor"),
            models.Index(fields=["thing_id"], name="audit_thing"),
        ]
        ordering = ["-id"]
        verbose_name_plural = "entries"

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.actor} {self.action} {self.thing}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise AppendOnlyError("rows of the audit are never changed")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AppendOnlyError("rows of the audit are never deleted before their time")

    @property
    def changes(self) -> Mapping[str, tuple[Any, Any]]:
        """(old, new) by field; None where there was, or is, no value."""
        names = dict.fromkeys([*self.old, *self.new])
        return {name: (self.old.get(name), self.new.get(name)) for name in names}
