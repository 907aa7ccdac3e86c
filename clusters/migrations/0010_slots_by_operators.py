"""Whose word the number of a GPU's slots is. Agents offered one slot until now: more than one was an operator's."""

import django.core.validators
from django.db import migrations, models


def operators_said_more_than_one(apps, schema_editor):
    apps.get_model("clusters", "Device").objects.filter(slots__gt=1).update(slots_set=True)


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0009_price_per_hour"),
    ]

    operations = [
        migrations.AddField(
            model_name="device",
            name="slots_set",
            field=models.BooleanField(
                default=False, editable=False, help_text="An operator set the slots: the agent's word is over"
            ),
        ),
        migrations.AlterField(
            model_name="device",
            name="slots",
            field=models.PositiveSmallIntegerField(
                default=1,
                help_text="Jobs that may share it",
                validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(16)],
            ),
        ),
        migrations.RunPython(operators_said_more_than_one, migrations.RunPython.noop),
    ]
