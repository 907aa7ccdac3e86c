"""Tables that grow with the history keep no index that repeats the beginning of another."""

import pytest
from django.db import connection

from controlplane.accounting.models import EnergyEntry
from jobs.models import Assignment, Attempt, Job, LogChunk, ProgressPoint, UsagePoint

# A member's count of jobs reads it: it is a quarter of the indexes that begin with it.
KEPT = {("jobs_job", ("team_id",))}


@pytest.mark.django_db
def test_no_foreign_key_has_an_index_that_repeats_the_beginning_of_another() -> None:
    repeated = set()
    with connection.cursor() as cursor:
        for model in (Job, Attempt, Assignment, LogChunk, ProgressPoint, UsagePoint, EnergyEntry):
            table = model._meta.db_table
            found = connection.introspection.get_constraints(cursor, table)
            indexes = [tuple(each["columns"]) for each in found.values() if each["index"]]
            indexes += [tuple(each["columns"]) for each in found.values() if each["unique"]]
            assert indexes
            repeated |= {
                (table, short)
                for short in indexes
                if len(short) == 1
                and any(len(other) > 1 and other[0] == short[0] for other in indexes)
            }
    assert repeated == KEPT
