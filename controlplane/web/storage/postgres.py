"""PostgreSQL without compiled queries.

With statistics of 100,000 jobs it compiles what a page of the queue asks, which takes as long as
the page: 82 ms instead of 125 to 165.
"""

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.dispatch import receiver


@receiver(connection_created)
def without_compiling(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """Tell each new session; in an address, poolers of connections would refuse it."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET jit = off")
