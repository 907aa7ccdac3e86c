"""Jobs and arrays of before get numbers, arrays first, each in the order of their submission.

In batches, each a transaction: one that is interrupted goes on where it was.
"""

from django.db import migrations, transaction

BATCH = 20_000
MOST_NUMBER = 2**26 - 1

GIVE_NUMBERS = """
    UPDATE {table} SET number = (given.place + %s - 1) %% {most} + 1
    FROM (
        SELECT id, row_number() OVER (ORDER BY submitted_at, id) AS place FROM {table}
        WHERE number = 0 AND submitted_at >= %s ORDER BY submitted_at, id LIMIT {batch}
    ) AS given
    WHERE {table}.id = given.id
"""


def number_all(apps, schema_editor):
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        taken = number_table(cursor, "jobs_jobarray", 0)
        taken = number_table(cursor, "jobs_job", taken)
        if taken and connection.vendor == "postgresql":
            newest = (taken - 1) % MOST_NUMBER + 1
            cursor.execute("SELECT setval('jobs_jobcounter_id_seq', %s)", [newest])
        elif taken:
            cursor.execute("DELETE FROM jobs_jobcounter")
            cursor.execute("INSERT INTO jobs_jobcounter (id, last) VALUES (1, %s)", [taken])


def number_table(cursor, table, taken):
    """Give a table's rows the numbers after those that were taken; return how many now are."""
    cursor.execute(f"SELECT max(number), min(submitted_at) FROM {table}")
    greatest, since = cursor.fetchone()
    taken = max(taken, greatest or 0)
    update = GIVE_NUMBERS.format(table=table, most=MOST_NUMBER, batch=BATCH)
    while since is not None:
        cursor.execute(update, [taken, since])
        if not cursor.rowcount:
            break
        taken += cursor.rowcount
        # Rows before those just numbered all have numbers: the next look begins here.
        newest = (taken - 1) % MOST_NUMBER + 1
        cursor.execute(f"SELECT max(submitted_at) FROM {table} WHERE number = %s", [newest])
        since = cursor.fetchone()[0]
    return taken


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("jobs", "0018_numbers_of_jobs")]

    operations = [migrations.RunPython(number_all, migrations.RunPython.noop)]
