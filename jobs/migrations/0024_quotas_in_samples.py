"""Samples of use tell the quota in force and the cores that it withholds."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0023_quotas_change_while_jobs_run")]

    operations = [
        migrations.AddField("usagepoint", "cores_limit", models.FloatField(null=True)),
        migrations.AddField("usagepoint", "throttled_cores", models.FloatField(null=True)),
    ]
