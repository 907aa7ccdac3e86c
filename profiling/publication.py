"""Published kinds: an operator lets all teams use what one team's jobs have measured.

The published kind has no team and no jobs. Each team's kind of its digest has copies of its numbers
wherever the team has not measured itself; the team's first measurement replaces a copy. What teams
measure never changes a published kind.
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
    """The kind is none of which this may be done."""


OF_KIND = ("setup_s", "stop_s", "lost_s", "saves_at_stop", "reports_steps")
"""Fields of a kind that are published; a team's kind has them where it has seen nothing itself."""

_OF_PROFILE = ("steps_per_s", "samples", "cores", "memory_gb", "gpu_fraction", "gpu_w")


def publish(kind: Kind) -> Kind:
    """Publish what the team of this kind has measured itself, in place of what was published.

    Raises KindStateError for a kind that is published itself, or of which nothing is measured.
    """
    if kind.team_id is None:
        raise KindStateError("it is published already; publish the kind of a team again to update")
    with transaction.atomic():
        shared, _ = Kind.objects.get_or_create(team=None, digest=kind.digest)
        teams_kinds = _lock_all(kind.digest)
        kind.refresh_from_db()
        own = list(_measured(kind))
        if not own:
            raise KindStateError("its team has measured nothing of it yet; publish it afterwards")
        shared.name = kind.name
        for name in OF_KIND:
            setattr(shared, name, getattr(kind, name))
        shared.save()
        Profile.objects.filter(kind=shared).delete()
        _write_copies(shared, own)
        for other in teams_kinds:
            _take(other, shared, own)
        new = {"numbers": len(own), "teams": len(teams_kinds)}
        audit.record("kind.publish", shared, team=kind.team, new=new)
    return shared


def withdraw(shared: Kind) -> None:
    """Delete a published kind, and the copies of its numbers.

    Raises KindStateError for a team's.
    """
    if shared.team_id is not None:
        raise KindStateError("it is a team's kind; withdraw the published one, which has no team")
    with transaction.atomic():
        teams_kinds = _lock_all(shared.digest)
        Profile.objects.filter(kind__in=teams_kinds, published=True).delete()
        audit.record("kind.withdraw", shared, new={"teams": len(teams_kinds)})
        shared.delete()


def take_published(kind: Kind) -> bool:
    """Copy what is published of a locked kind of a team; return True if that is anything."""
    shared = Kind.objects.filter(team=None, digest=kind.digest).first()
    if shared is None:
        return False
    _take(kind, shared, list(Profile.objects.filter(kind=shared)))
    return Profile.objects.filter(kind=kind, published=True).exists()


def _lock_all(digest: str) -> list[Kind]:
    """Lock all kinds of the digest, in the order in which others lock several; teams' kinds."""
    rows = Kind.objects.select_for_update(no_key=True).filter(digest=digest).order_by("pk")
    return [kind for kind in rows if kind.team_id is not None]


def _measured(kind: Kind) -> QuerySet[Profile]:
    return Profile.objects.filter(kind=kind, source=Source.MEASURED, published=False)


def _take(kind: Kind, shared: Kind, numbers: Sequence[Profile]) -> None:
    """Replace the kind's copies by these numbers, but for what its team has seen itself."""
    Profile.objects.filter(kind=kind, published=True).delete()
    if {kind.reports_steps, shared.reports_steps} == {True, False}:
        return  # one speed is that of steps, the other that of whole runs
    for name in OF_KIND:
        if getattr(kind, name) is None:
            setattr(kind, name, getattr(shared, name))
    kind.save(update_fields=OF_KIND)
    own = {(p.gpu_type_id, p.gpus, p.spread) for p in _measured(kind)}
    failed = ProfileRun.objects.filter(UNFIT, kind=kind)
    own |= {(run.gpu_type_id, run.gpus, False) for run in failed}
    _write_copies(kind, [p for p in numbers if (p.gpu_type_id, p.gpus, p.spread) not in own])


def _write_copies(kind: Kind, numbers: Sequence[Profile]) -> None:
    """Write these numbers as published ones of the kind, as old as they are."""
    for p in numbers:
        where: dict[str, Any] = {
            "kind": kind, "gpu_type_id": p.gpu_type_id, "gpus": p.gpus, "spread": p.spread,
        }  # fmt: skip
        values = {name: getattr(p, name) for name in _OF_PROFILE}
        values |= {"source": Source.MEASURED, "published": True}
        copy, _ = Profile.objects.update_or_create(**where, defaults=values)
        Profile.objects.filter(pk=copy.pk).update(updated_at=p.updated_at)
