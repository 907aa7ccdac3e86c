"""Commands of backups, and what is in a database."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from io import StringIO

from django.core.management import call_command

New = Callable[[], AbstractContextManager[object]]
"""Makes a database, which is the default one within."""


def told(command: str, *arguments: object, **options: object) -> str:
    """What a command says."""
    said = StringIO()
    call_command(command, *map(str, arguments), stdout=said, **options)
    return said.getvalue()
