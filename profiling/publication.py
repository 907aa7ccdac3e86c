"""Published kinds: an operator lets all teams use what one team's jobs have measured.

The published kind has no team and no jobs. Each team's kind of the same digest has copies of its
profiles, except for configurations that the team has measured itself; the team's first measurement
replaces a copy. Measurements of teams never change a published kind.
"""

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from controlplane.audit import record as audit
from jobs.models import Kind
from policies.contract.snapshot import Source
from profiling.models import UNFIT, Profile, ProfileRun


class KindStateError(Exception):
    """Refusal of an action that the state of a kind does not allow."""


PUBLISHED_FIELDS = ("setup_s", "stop_s", "lost_s", "saves_at_stop", "reports_steps")
"""Fields of a kind that are published; a team's kind has them until it has measured them itself."""

_COPIED_FIELDS = ("steps_per_s", "samples", "cores", "memory_gb", "gpu_fraction", "gpu_w")
"""Fields of a profile that are copied to teams' kinds."""


def publish(kind: Kind) -> Kind:
    """Publish what the team of this kind has measured itself, in place of what was published.

    Return the published kind. Raises KindStateError for a kind that is published itself, or of
    which nothing is measured.
    """
    if kind.team_id is None:
        raise KindStateError("it is published already; publish the kind of a team again to update")
    with transaction.atomic():
        # 1. The team's own measurements.
        shared, _ = Kind.objects.get_or_create(team=None, digest=kind.digest)
        teams_kinds = _lock_all(kind.digest)
        kind.refresh_from_db()
        measured = list(_measured(kind))
        if not measured:
            raise KindStateError("its team has measured nothing of it yet; publish it afterwards")

        # 2. The published kind.
        shared.name = kind.name
        for name in PUBLISHED_FIELDS:
            setattr(shared, name, getattr(kind, name))
        shared.save()
        Profile.objects.filter(kind=shared).delete()
        _write_copies(shared, measured)

        # 3. The kinds of all teams.
        for teams_kind in teams_kinds:
            _copy_to(teams_kind, shared, measured)
        values = {"numbers": len(measured), "teams": len(teams_kinds)}
        audit.record("kind.publish", shared, team=kind.team, new=values)
    return shared


def withdraw(shared: Kind) -> None:
    """Delete a published kind, and the copies of its profiles.

    Raises KindStateError for a team's kind.
    """
    if shared.team_id is not None:
        raise KindStateError("it is a team's kind; withdraw the published one, which has no team")
    with transaction.atomic():
        teams_kinds = _lock_all(shared.digest)
        Profile.objects.filter(kind__in=teams_kinds, published=True).delete()
        audit.record("kind.withdraw", shared, new={"teams": len(teams_kinds)})
        shared.delete()


def take_published(kind: Kind) -> bool:
    """Copy the published profiles to a locked kind of a team; return True if there are any."""
    shared = Kind.objects.filter(team=None, digest=kind.digest).first()
    if shared is None:
        return False
    _copy_to(kind, shared, list(Profile.objects.filter(kind=shared)))
    return Profile.objects.filter(kind=kind, published=True).exists()


def _lock_all(digest: str) -> list[Kind]:
    """Lock all kinds of the digest, in the order in which all lock several; return teams' kinds."""
    kinds = Kind.objects.select_for_update(no_key=True).filter(digest=digest).order_by("pk")
    return [kind for kind in kinds if kind.team_id is not None]


def _measured(kind: Kind) -> QuerySet[Profile]:
    """Return the profiles that the kind's team has measured itself."""
    return Profile.objects.filter(kind=kind, source=Source.MEASURED, published=False)


def _copy_to(kind: Kind, shared: Kind, profiles: Sequence[Profile]) -> None:
    """Replace a team's kind's copies by these profiles of the published kind.

    Configurations that the team has measured, or that its command cannot run on, get none.
    """
    Profile.objects.filter(kind=kind, published=True).delete()
    if {kind.reports_steps, shared.reports_steps} == {True, False}:
        return  # one has speeds of steps, the other of whole runs
    for name in PUBLISHED_FIELDS:
        if getattr(kind, name) is None:
            setattr(kind, name, getattr(shared, name))
    kind.save(update_fields=PUBLISHED_FIELDS)
    settled = {(p.gpu_type_id, p.gpus, p.spread) for p in _measured(kind)}
    for run in ProfileRun.objects.filter(UNFIT, kind=kind):
        settled.add((run.gpu_type_id, run.gpus, False))
    missing = [p for p in profiles if (p.gpu_type_id, p.gpus, p.spread) not in settled]
    _write_copies(kind, missing)


def _write_copies(kind: Kind, profiles: Sequence[Profile]) -> None:
    """Write copies of these profiles, as published ones of the kind, with their ages."""
    for profile in profiles:
        configuration: dict[str, Any] = {
            "kind": kind,
            "gpu_type_id": profile.gpu_type_id,
            "gpus": profile.gpus,
            "spread": profile.spread,
        }
        values = {name: getattr(profile, name) for name in _COPIED_FIELDS}
        values["source"] = Source.MEASURED
        values["published"] = True
        copy, _ = Profile.objects.update_or_create(**configuration, defaults=values)
        Profile.objects.filter(pk=copy.pk).update(updated_at=profile.updated_at)
