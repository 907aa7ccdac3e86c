"""Quotas of cores that change while a job runs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0022_starts_of_dependencies")]

    operations = [
        migrations.AddField(
            model_name="assignment",
            name="quota_at",
            field=models.DateTimeField(
                blank=True,
                editable=False,
                help_text="When its cores last changed as it ran",
                null=True,
            ),
        ),
    ]
