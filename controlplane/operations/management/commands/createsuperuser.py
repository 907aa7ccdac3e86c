"""Django's command, which takes a password from the environment unseen: it is checked here."""

import os
from typing import Any

from django.contrib.auth.management.commands import createsuperuser
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import CommandError
from django.db import transaction

from controlplane.audit.record import record


class Command(createsuperuser.Command):
    def handle(self, *args: Any, **options: Any) -> str | None:
        password = os.environ.get("DJANGO_SUPERUSER_PASSWORD")
        if password and not options["interactive"]:
            try:
                validate_password(password, _new_user(options))
            except ValidationError as error:
                problems = " ".join(error.messages)
                raise CommandError(f"DJANGO_SUPERUSER_PASSWORD: {problems}") from None
        earlier_users = set(User.objects.values_list("pk", flat=True))
        with transaction.atomic():
            message = super().handle(*args, **options)
            for user in User.objects.exclude(pk__in=earlier_users):
                record("person.add", user, new={"operator": True})
        return message


def _new_user(options: dict[str, Any]) -> User:
    """User with the name and mail that Django's command takes; options go before variables."""
    name = options["username"] or os.environ.get("DJANGO_SUPERUSER_USERNAME", "")
    email = options["email"] or os.environ.get("DJANGO_SUPERUSER_EMAIL", "")
    return User(username=name, email=email)
