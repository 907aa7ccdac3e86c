from decimal import Decimal

import django.core.validators
from django.db import migrations, models

import clusters.models.clusters


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0005_promised_grace"),
    ]

    operations = [
        migrations.AddField(
            model_name="cluster",
            name="power_cap_hours",
            field=models.JSONField(
                blank=True,
                default=list,
                help_text='Lower caps for some hours, such as [{"power_cap_w": 2000, "from": "08:00", "to": "20:00", "days": "01234"}]',
                validators=[clusters.models.clusters.check_power_cap_hours],
            ),
        ),
        migrations.AddField(
            model_name="cluster",
            name="emissions_cost_per_kg",
            field=models.DecimalField(
                decimal_places=6,
                default=Decimal("0"),
                help_text="What decisions weigh a kilogram of CO2 at, in the cluster's currency; bills are without it",
                max_digits=12,
                validators=[django.core.validators.MinValueValidator(Decimal("0"))],
            ),
        ),
        migrations.AddField(
            model_name="tariffband",
            name="emissions_g_per_kwh",
            field=models.FloatField(
                blank=True,
                help_text="Grams of CO2 per kWh in these hours; the tariff's where left out",
                null=True,
                validators=[django.core.validators.MinValueValidator(0.0)],
            ),
        ),
    ]
