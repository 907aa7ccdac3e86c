"""Record of a change, written in the transaction that makes it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Manager, Model, QuerySet

from controlplane.audit.models import Entry
from controlplane.audit.origin import origin

HIDDEN = "(hidden)"
SECRET_WORDS = ("password", "secret", "token", "sha256", "cipher", "digest", "share_key", "value")
"""Parts of the names of fields whose values are not kept, unless a field is one of OPEN."""
OPEN = frozenset({"value_of_time"})
LONGEST = 500
"""Characters of a value that are kept."""


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a thing: `old` and `new` are values by field, `team` the team it is of."""

    action: str
    thing: Model | str
    team: Model | None = None
    old: Mapping[str, Any] = field(default_factory=dict)
    new: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    """Name of the thing, if not its text."""


def record(
    action: str,
    thing: Model | str,
    *,
    team: Model | None = None,
    old: Mapping[str, Any] | None = None,
    new: Mapping[str, Any] | None = None,
    by: User | None = None,
) -> None:
    """Add the row of a change such as "job.cancel"; call it in the change's own transaction."""
    record_all([Change(action, thing, team, old or {}, new or {})], by=by)


def record_all(changes: Iterable[Change], *, by: User | None = None) -> None:
    """Add the rows of changes by one person in one query."""
    come = origin(by)
    Entry.objects.bulk_create(
        Entry(
            actor=come.actor, actor_id=come.actor_id, channel=come.channel, address=come.address,
            action=one.action, thing=(one.name or str(one.thing))[:200],
            thing_id=str(one.thing.pk)[:64] if isinstance(one.thing, Model) else "",
            team=str(one.team) if one.team is not None else "",
            team_id=one.team.pk if one.team is not None else None,
            old=plain_values(one.old), new=plain_values(one.new),
        )
        for one in changes
    )  # fmt: skip


def record_values(
    action: str, row: Model, new: Mapping[str, Any], old: Mapping[str, Any] | None = None,
    *, team: Model | None = None, by: User | None = None,
) -> None:  # fmt: skip
    """Add the row of a change of these fields, if any differs. `old`: none for a new thing."""
    if old is not None:
        names = [name for name in new if old.get(name) != new[name]]
        old, new = {n: old.get(n) for n in names}, {n: new[n] for n in names}
    if old is None or new:
        record(action, row, team=team, old=old, new=new, by=by)


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON that people read; those of secrets are hidden."""
    return {name: HIDDEN if is_secret(name) else plain(value) for name, value in values.items()}


@lru_cache(maxsize=1000)
def is_secret(name: str) -> bool:
    """Return True for a field whose value is not to be kept."""
    return name not in OPEN and any(word in name.lower() for word in SECRET_WORDS)


def plain(value: Any) -> Any:
    """Value as short JSON: numbers as they are, the rest as text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return plain_values({str(name): inner for name, inner in list(value.items())[:50]})
    if isinstance(value, Manager):
        value = value.all()
    if isinstance(value, list | tuple | set | frozenset | QuerySet):
        return [plain(inner) for inner in list(value)[:50]]
    return str(value)[:LONGEST]
