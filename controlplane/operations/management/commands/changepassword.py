"""manage.py changepassword NAME: Django's command, with its row of the audit."""

from typing import Any

from django.contrib.auth.management.commands import changepassword
from django.db import transaction

from controlplane.audit.record import record


class Command(changepassword.Command):
    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> str | None:
        message = super().handle(*args, **options)
        record("person.password", options["username"] or "the user of the system")
        return message
