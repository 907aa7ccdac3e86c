"""Foreign keys lose the indexes that repeat the beginning of another.

By SQL: SQLite would copy whole tables for it. Both databases use the names below.
"""

import django.db.models.deletion
from django.db import migrations, models

INDEXES = (
    ("jobs_assignment_job_id_189fd847", "jobs_assignment", "job_id"),
    ("jobs_assignment_node_id_e0c43b4a", "jobs_assignment", "node_id"),
    ("jobs_attempt_job_id_b587cf59", "jobs_attempt", "job_id"),
    ("jobs_job_cluster_id_e533c240", "jobs_job", "cluster_id"),
    ("jobs_logchunk_assignment_id_f3bafad2", "jobs_logchunk", "assignment_id"),
    ("jobs_progresspoint_assignment_id_7391d4e2", "jobs_progresspoint", "assignment_id"),
    ("jobs_usagepoint_assignment_id_874304f5", "jobs_usagepoint", "assignment_id"),
)


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0010_longest_times"),
        ("jobs", "0015_newest_runs"),
    ]

    operations = [
        migrations.RunSQL(
            [f"DROP INDEX IF EXISTS {name}" for name, _, _ in INDEXES],
            [f"CREATE INDEX {name} ON {table} ({column})" for name, table, column in INDEXES],
            state_operations=[
                migrations.AlterField(
                    model_name="assignment",
                    name="job",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="assignments",
                        to="jobs.job",
                    ),
                ),
                migrations.AlterField(
                    model_name="assignment",
                    name="node",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="assignments",
                        to="clusters.node",
                    ),
                ),
                migrations.AlterField(
                    model_name="attempt",
                    name="job",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="attempts",
                        to="jobs.job",
                    ),
                ),
                migrations.AlterField(
                    model_name="job",
                    name="cluster",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="jobs",
                        to="clusters.cluster",
                    ),
                ),
                migrations.AlterField(
                    model_name="logchunk",
                    name="assignment",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="log_chunks",
                        to="jobs.assignment",
                    ),
                ),
                migrations.AlterField(
                    model_name="progresspoint",
                    name="assignment",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="progress",
                        to="jobs.assignment",
                    ),
                ),
                migrations.AlterField(
                    model_name="usagepoint",
                    name="assignment",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="usage",
                        to="jobs.assignment",
                    ),
                ),
            ],
        ),
    ]
