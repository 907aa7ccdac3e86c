"""Numbers of jobs and arrays: one counter for the installation, which begins again at its end.

A number means the newest job that has it, or array. An array's number comes before those of its
elements, which are jobs with numbers of their own.
"""

from collections.abc import Collection
from uuid import UUID

from django.db import connections, router
from django.db.models import QuerySet

from jobs.models import Job, JobArray
from loadmaster.slurm.scripts.numbers import MOST_NUMBER

# A sequence of PostgreSQL is never locked: submissions that run at a time do not wait for another.
_FROM_SEQUENCE = "SELECT nextval('jobs_jobcounter_id_seq') FROM generate_series(1, %s)"

# SQLite has no sequences, and one writer at a time: a row does the same.
_FROM_ROW = """
    INSERT INTO jobs_jobcounter (id, last) VALUES (1, %s)
    ON CONFLICT (id) DO UPDATE SET last = last + excluded.last RETURNING last
"""


def take_numbers(count: int) -> list[int]:
    """Take so many new numbers in one step; those of a transaction that fails are not used again.

    Numbers of one call ascend, but for the one call in 67 million jobs in which counting begins
    again.
    """
    connection = connections[router.db_for_write(Job)]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(_FROM_SEQUENCE, [count])
            return [number for (number,) in cursor.fetchall()]
        cursor.execute(_FROM_ROW, [count])
        last = int(cursor.fetchone()[0])
    # After the greatest number 1 follows again, as a sequence does by itself.
    return [(taken - 1) % MOST_NUMBER + 1 for taken in range(last - count + 1, last + 1)]


def jobs_with_numbers(jobs: QuerySet[Job], numbers: Collection[int]) -> dict[int, UUID]:
    """Newest of these jobs with each number, by number; those of arrays' elements too."""
    rows = jobs.filter(number__in=numbers).order_by("submitted_at", "pk")
    return dict(rows.values_list("number", "pk"))


def arrays_with_numbers(jobs: QuerySet[Job], numbers: Collection[int]) -> dict[int, UUID]:
    """Newest of the arrays of these jobs with each number, by number."""
    arrays = JobArray.objects.filter(number__in=numbers)
    seen = jobs.filter(array__in=arrays.values("pk")).order_by().values("array")
    rows = arrays.filter(pk__in=seen).order_by("submitted_at", "pk")
    return dict(rows.values_list("number", "pk"))
