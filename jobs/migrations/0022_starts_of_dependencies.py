"""Dependencies on the start of a job, with a delay, and alternatives of which one suffices."""

import datetime

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0021_run_times_of_ended_jobs")]

    operations = [
        migrations.AlterField(
            model_name="dependency",
            name="condition",
            field=models.CharField(
                choices=[
                    ("after", "After"),
                    ("afterok", "Afterok"),
                    ("afterany", "Afterany"),
                    ("afternotok", "Afternotok"),
                ],
                default="afterok",
                max_length=10,
            ),
        ),
        migrations.AddField(
            model_name="dependency",
            name="delay",
            field=models.DurationField(
                default=datetime.timedelta(0),
                help_text="Time that must pass after the start",
            ),
        ),
        migrations.AddField(
            model_name="dependency",
            name="alternative",
            field=models.BooleanField(
                default=False, help_text="One of several, of which one suffices"
            ),
        ),
    ]
