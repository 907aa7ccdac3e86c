"""Where gangs meet, when a term was last changed, and an end that another rank of the gang is to blame for."""

from django.db import migrations, models

REASONS = ["user", "oom", "image", "gpu", "node", "preempt", "lease", "operator", "gang"]


class Migration(migrations.Migration):
    dependencies = [("clusters", "0007_cost_search_by_default")]

    operations = [
        migrations.AddField(
            model_name="node",
            name="address",
            field=models.CharField(
                blank=True, db_default="", default="", editable=False, help_text="Where other nodes reach it", max_length=255
            ),
        ),
        migrations.AddField(
            model_name="assignment",
            name="gang_port",
            field=models.PositiveIntegerField(
                blank=True, editable=False, help_text="Where its gang meets, on rank 0's node", null=True
            ),
        ),
        migrations.AddField(
            model_name="assignment",
            name="term_at",
            field=models.DateTimeField(blank=True, editable=False, help_text="When its term was last changed", null=True),
        ),
        migrations.AlterField(
            model_name="assignment",
            name="reason_class",
            field=models.CharField(blank=True, choices=[(name, name) for name in REASONS], default="", max_length=10),
        ),
    ]
