from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0010_renewals_of_leases'),
    ]

    operations = [
        # SQLite would copy the table for a default, and read all of it for a check that a number
        # is positive.
        migrations.AddField(
            model_name='logchunk',
            name='unpacked_size',
            field=models.IntegerField(
                editable=False,
                help_text='Bytes of its data, which is gzip; empty: it is plain',
                null=True,
            ),
        ),
    ]
