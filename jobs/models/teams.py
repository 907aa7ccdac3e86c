"""Teams, memberships and secrets."""

from __future__ import annotations

from math import isfinite

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models


def check_finite(value: float) -> None:
    """Reject NaN and infinity, which pass minimum and maximum validators."""
    if not isfinite(value):
        raise ValidationError("Enter a number.")


class Order(models.TextChoices):
    """Order in which a team's jobs share its resources (policies.contract.snapshot.TeamOrder)."""

    FAIRNESS = "fairness", "fairness: by the jobs' weights"
    FIFO = "fifo", "fifo: first in, first out"


class Team(models.Model):
    """Team whose members see each other's jobs; `weight` is its fair share, `order` divides it.

    `LIMITS` bound what its members ask for and what its jobs occupy; None is no limit.
    """

    LIMITS = (
        "max_tardiness_weight",
        "max_priority",
        "max_weight",
        "max_queued_jobs",
        "max_gpus",
        "max_submissions_per_minute",
    )

    name = models.SlugField(unique=True, max_length=63)
    weight = models.FloatField(
        default=1.0,
        validators=[check_finite, MinValueValidator(0.001), MaxValueValidator(1e6)],
        help_text="Its fair share against other teams, where a policy goes by teams",
    )
    order = models.CharField(
        max_length=16,
        choices=Order.choices,
        default=Order.FAIRNESS,
        help_text="How its own jobs share what the team has",
    )
    max_tardiness_weight = models.FloatField(
        default=1.0,
        validators=[check_finite, MinValueValidator(0.0), MaxValueValidator(1e6)],
        help_text="The greatest tardiness_weight of a job, in currency per second",
    )
    max_priority = models.PositiveIntegerField(
        default=10,
        validators=[MaxValueValidator(1_000_000)],
        help_text="The greatest priority of a job",
    )
    max_weight = models.FloatField(
        default=10.0,
        validators=[check_finite, MinValueValidator(1.0), MaxValueValidator(1e6)],
        help_text="The greatest fair share of a job in its team; its default is 1",
    )
    max_queued_jobs = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="The most jobs that wait or are held, over all clusters; empty: as installed",
    )
    max_gpus = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="The most GPUs in use at a time on each cluster; empty: any number",
    )
    max_submissions_per_minute = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="The most jobs and arrays submitted within 60 s; empty: any number",
    )
    members: models.ManyToManyField[models.Model, Membership] = models.ManyToManyField(
        settings.AUTH_USER_MODEL, through="Membership", related_name="teams"
    )

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class TeamRole(models.TextChoices):
    """Role of a person in a team; each includes those before it (`jobs.roles`)."""

    VIEWER = "viewer", "viewer: changes nothing"
    MEMBER = "member", "member: submits, and changes what is their own"
    MAINTAINER = "maintainer", "maintainer: also changes team-mates' jobs, studies, and secrets"


class Membership(models.Model):
    """Person in a team, with their role there."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    role = models.CharField(
        max_length=10, choices=TeamRole.choices, default=TeamRole.MEMBER, db_default=TeamRole.MEMBER
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "user"], name="member_once")]

    def __str__(self) -> str:
        return f"{self.user} in {self.team}"


class Secret(models.Model):
    """Named secret of a team, encrypted at rest; sent to agents that accept a job with it."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="secrets")
    name = models.CharField(max_length=63, validators=[RegexValidator(r"^[A-Za-z][A-Za-z0-9_-]*$")])
    ciphertext = models.BinaryField(editable=False)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "name"], name="secret_once_per_team")
        ]
        ordering = ["team", "name"]

    def __str__(self) -> str:
        return f"{self.team}/{self.name}"
