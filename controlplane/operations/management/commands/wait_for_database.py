"""manage.py wait_for_database: end once the database can be reached, however late it comes up."""

import re
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, connection

RETRY_S = 3.0

_WRONG = re.compile(r"authentication failed|does not exist|pg_hba\.conf")
"""Errors of the driver that no waiting mends."""


class Command(BaseCommand):
    help = "Wait until the database can be reached; fail at once where DATABASE_URL is wrong"

    def handle(self, *args: Any, **options: Any) -> None:
        while True:
            try:
                connection.ensure_connection()
            except OperationalError as error:
                if _WRONG.search(str(error)):
                    raise CommandError(f"check DATABASE_URL: {error}") from error
                self.stderr.write(f"waiting for the database: {error}")
            else:
                return
            time.sleep(RETRY_S)
