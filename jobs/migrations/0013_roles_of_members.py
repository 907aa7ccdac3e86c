from django.db import migrations, models

ROLES = [
    ("viewer", "viewer: changes nothing"),
    ("member", "member: submits, and changes what is their own"),
    ("maintainer", "maintainer: also changes team-mates' jobs, studies, and secrets"),
]


class Migration(migrations.Migration):
    """Make present members maintainers, who may do all that members could before."""

    dependencies = [("jobs", "0012_limits_of_teams")]

    operations = [
        migrations.AddField(
            model_name="membership",
            name="role",
            field=models.CharField(
                choices=ROLES, db_default="maintainer", default="maintainer", max_length=10
            ),
        ),
        migrations.AlterField(
            model_name="membership",
            name="role",
            field=models.CharField(
                choices=ROLES, db_default="member", default="member", max_length=10
            ),
        ),
    ]
