"""Jobs and arrays get a number, 0 until `0019_number_old_jobs` gives them theirs.

By SQL: SQLite would copy whole tables for it.
"""

from django.conf import settings
from django.db import migrations, models

ADD = "ALTER TABLE {} ADD COLUMN number integer NOT NULL DEFAULT 0 CHECK (number >= 0)"
REMOVE = "ALTER TABLE {} DROP COLUMN number"
BOUND = "ALTER TABLE jobs_jobcounter ALTER COLUMN id SET MAXVALUE 67108863 SET CYCLE"


def bound_sequence(apps, schema_editor):
    """Let PostgreSQL count by the sequence of the counter's keys, which backups know as its own."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(BOUND)


def number_field():
    return models.PositiveIntegerField(
        default=0, editable=False, help_text="As scripts for Slurm know it; 0: none"
    )


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0010_longest_times"),
        ("jobs", "0017_ends_of_nodes"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="JobCounter",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("last", models.PositiveBigIntegerField(help_text="How many numbers were taken")),
            ],
        ),
        migrations.RunPython(bound_sequence, migrations.RunPython.noop),
        migrations.RunSQL(
            [ADD.format("jobs_job"), ADD.format("jobs_jobarray")],
            [REMOVE.format("jobs_job"), REMOVE.format("jobs_jobarray")],
            state_operations=[
                migrations.AddField("job", "number", number_field()),
                migrations.AddField("jobarray", "number", number_field()),
            ],
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("number__gt", 0)), fields=["number"], name="job_number"
            ),
        ),
        migrations.AddIndex(
            model_name="jobarray",
            index=models.Index(
                condition=models.Q(("number__gt", 0)), fields=["number"], name="array_number"
            ),
        ),
    ]
