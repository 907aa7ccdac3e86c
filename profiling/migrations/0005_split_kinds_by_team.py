from collections.abc import Sequence
from typing import Any

from django.db import migrations
from django.db.models import Count, F, OuterRef, Q, Subquery

MEASURED, ESTIMATED = "measured", "estimated"
_COPIED = (
    "digest", "name", "setup_s", "stop_s", "lost_s", "saves_at_stop", "reports_steps",
)  # fmt: skip


def give_kinds_to_teams(apps: Any, schema_editor: Any) -> None:
    """Give each kind to the team of its jobs; one of several teams to each of them.

    The team with the most jobs keeps the row, the others get copies. Numbers that a team has not
    measured itself become estimates. A kind without jobs has no team and is deleted.
    """
    kinds, jobs = apps.get_model("jobs", "Kind"), apps.get_model("jobs", "Job")
    team_of_a_job = jobs.objects.filter(kind=OuterRef("pk")).order_by().values("team")[:1]
    kinds.objects.update(team=Subquery(team_of_a_job))
    kinds.objects.filter(team=None).delete()
    strange = jobs.objects.exclude(team=F("kind__team")).order_by()
    of_several = sorted(set(strange.values_list("kind", flat=True)))
    for pk in of_several:
        counts = jobs.objects.filter(kind=pk).order_by().values_list("team").annotate(n=Count("pk"))
        teams = [team for team, _ in sorted(counts, key=lambda row: (-row[1], row[0]))]
        _split(apps, kinds.objects.get(pk=pk), teams)


def _split(apps: Any, kind: Any, teams: Sequence[int]) -> None:
    kinds, profiles = apps.get_model("jobs", "Kind"), apps.get_model("profiling", "Profile")
    of_job = {"jobs.Job": "team", "profiling.ProfileRun": "job__team",
              "profiling.Measurement": "assignment__job__team"}  # fmt: skip
    _drop_pairs(apps, kind)
    kinds.objects.filter(pk=kind.pk).update(team=teams[0])
    numbers = list(profiles.objects.filter(kind=kind))
    for team in teams[1:]:
        values = {name: getattr(kind, name) for name in _COPIED}
        copy = kinds.objects.create(team_id=team, **values)
        kinds.objects.filter(pk=copy.pk).update(created_at=kind.created_at)
        for model, its_team in of_job.items():
            rows = apps.get_model(model).objects.filter(kind=kind, **{its_team: team})
            rows.update(kind=copy)
        for number in numbers:
            number.pk, number.kind = None, copy
            number.save(force_insert=True)
        _keep_own(apps, copy)
    _keep_own(apps, kind)


def _keep_own(apps: Any, kind: Any) -> None:
    """Keep as measured what a team's own jobs have measured, at their newest speed."""
    profiles = apps.get_model("profiling", "Profile").objects.filter(kind=kind, source=MEASURED)
    for number in profiles:
        own = apps.get_model("profiling", "Measurement").objects.filter(
            kind=kind, gpu_type=number.gpu_type_id, gpus=number.gpus, spread=number.spread
        )
        newest = own.order_by("-pk").first()
        values = {"steps_per_s": newest.steps_per_s, "samples": own.count()} if newest else {}
        values = values or {"source": ESTIMATED, "samples": 0}
        profiles.filter(pk=number.pk).update(**values)


def _drop_pairs(apps: Any, kind: Any) -> None:
    """Have pairs with a kind of several teams measured anew: whose jobs they were is unknown."""
    for name in ("PairRun", "PairMeasurement", "PairProfile"):
        rows = apps.get_model("profiling", name).objects
        rows.filter(Q(first=kind) | Q(second=kind)).delete()


class Migration(migrations.Migration):
    dependencies = [("jobs", "0014_kinds_of_teams"), ("profiling", "0004_published_and_held")]

    operations = [migrations.RunPython(give_kinds_to_teams, migrations.RunPython.noop)]
