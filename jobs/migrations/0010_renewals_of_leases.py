from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0009_signals_before_the_end'),
    ]

    operations = [
        migrations.AddField(
            model_name='assignment',
            name='renewed_by',
            field=models.PositiveBigIntegerField(
                default=0,
                editable=False,
                help_text='Number of the heartbeat that last renewed its lease',
            ),
        ),
        migrations.AddField(
            model_name='assignment',
            name='renewed_at',
            field=models.DateTimeField(
                blank=True,
                editable=False,
                help_text='When its lease was last given',
                null=True,
            ),
        ),
    ]
