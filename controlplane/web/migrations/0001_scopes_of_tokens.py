"""Scopes and last uses of tokens, one-time passwords; tokens without an end get one."""

from datetime import timedelta
from typing import Any

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models import Q
from django.utils import timezone


def end_tokens_some_day(apps: Any, schema_editor: Any) -> None:
    """Let existing tokens go on for the longest time that a new one may have."""
    ends = timezone.now() + timedelta(days=settings.TOKEN_MAX_DAYS)
    tokens = apps.get_model("knox", "AuthToken").objects
    tokens.filter(Q(expiry__isnull=True) | Q(expiry__gt=ends)).update(expiry=ends)


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("knox", "0009_extend_authtoken_field"),
    ]

    operations = [
        migrations.CreateModel(
            name="OneTimePassword",
            fields=[
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="TokenGrant",
            fields=[
                (
                    "token",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="grant",
                        serialize=False,
                        to="knox.authtoken",
                    ),
                ),
                (
                    "scope",
                    models.CharField(
                        choices=[
                            ("read", "reading"),
                            ("submit", "reading and submitting"),
                            ("operate", "everything you may do"),
                        ],
                        default="operate",
                        max_length=10,
                    ),
                ),
                ("last_used_at", models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.RunPython(end_tokens_some_day, migrations.RunPython.noop),
    ]
