"""Foreign keys lose the indexes that repeat the beginning of another.

By SQL: SQLite would copy whole tables for it. Both databases use the names below.
"""

import django.db.models.deletion
from django.db import migrations, models

INDEXES = (
    ("accounting_energyentry_assignment_id_115f79fe", "accounting_energyentry", "assignment_id"),
    ("accounting_energyentry_cluster_id_e9f96ce8", "accounting_energyentry", "cluster_id"),
    ("accounting_energyentry_team_id_a75ac8b4", "accounting_energyentry", "team_id"),
)


class Migration(migrations.Migration):
    dependencies = [
        ("accounting", "0003_energy_by_job"),
        ("clusters", "0010_longest_times"),
        ("jobs", "0015_newest_runs"),
    ]

    operations = [
        migrations.RunSQL(
            [f"DROP INDEX IF EXISTS {name}" for name, _, _ in INDEXES],
            [f"CREATE INDEX {name} ON {table} ({column})" for name, table, column in INDEXES],
            state_operations=[
                migrations.AlterField(
                    model_name="energyentry",
                    name="assignment",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="energy_entries",
                        to="jobs.assignment",
                    ),
                ),
                migrations.AlterField(
                    model_name="energyentry",
                    name="cluster",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="clusters.cluster",
                    ),
                ),
                migrations.AlterField(
                    model_name="energyentry",
                    name="team",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="jobs.team",
                    ),
                ),
            ],
        ),
    ]
