"""Dependencies get a condition; their table stays."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0006_batch_jobs"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name="Dependency",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True,
                                primary_key=True,
                                serialize=False,
                                verbose_name="ID",
                            ),
                        ),
                        (
                            "job",
                            models.ForeignKey(
                                db_column="from_job_id",
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="dependency_links",
                                to="jobs.job",
                            ),
                        ),
                        (
                            "on",
                            models.ForeignKey(
                                db_column="to_job_id",
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="dependent_links",
                                to="jobs.job",
                            ),
                        ),
                    ],
                    options={
                        "db_table": "jobs_job_dependencies",
                        "unique_together": {("job", "on")},
                    },
                ),
                migrations.AlterField(
                    model_name="job",
                    name="dependencies",
                    field=models.ManyToManyField(
                        blank=True,
                        related_name="dependents",
                        through="jobs.Dependency",
                        through_fields=("job", "on"),
                        to="jobs.job",
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="dependency",
            name="condition",
            field=models.CharField(
                choices=[
                    ("afterok", "Afterok"),
                    ("afterany", "Afterany"),
                    ("afternotok", "Afternotok"),
                ],
                default="afterok",
                max_length=10,
            ),
        ),
    ]
