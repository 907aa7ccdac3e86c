import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

import controlplane.web.storage.packed_json

ROOM = "The most jobs that wait or are held, over all clusters; empty: as installed"


class Migration(migrations.Migration):
    """Arrays that are written in parts, and a limit of the queue for teams without their own."""

    dependencies = [("jobs", "0019_number_old_jobs")]

    operations = [
        migrations.CreateModel(
            name="UnfinishedArray",
            fields=[
                (
                    "array",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="unfinished",
                        serialize=False,
                        to="jobs.jobarray",
                    ),
                ),
                (
                    "written",
                    models.PositiveIntegerField(
                        help_text="Elements written so far, by their indices"
                    ),
                ),
                (
                    "rest",
                    controlplane.web.storage.packed_json.PackedJSONField(
                        help_text="What the others are made from (jobs.submission.elements)"
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="jobs.team",
                    ),
                ),
            ],
        ),
        migrations.AlterField(
            model_name="team",
            name="max_queued_jobs",
            field=models.PositiveIntegerField(
                blank=True,
                null=True,
                help_text=ROOM,
                validators=[django.core.validators.MinValueValidator(1)],
            ),
        ),
    ]
