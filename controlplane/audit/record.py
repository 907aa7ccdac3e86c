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
"""Fields that only look secret by their name."""

LONGEST = 500
"""Characters of a value that are kept."""

MOST_ITEMS = 50
"""Items of a list or mapping that are kept."""


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
    who = origin(by)
    entries = []
    for change in changes:
        entry = Entry(
            actor=who.actor,
            actor_id=who.actor_id,
            channel=who.channel,
            address=who.address,
            action=change.action,
            thing=(change.name or str(change.thing))[:200],
            old=plain_values(change.old),
            new=plain_values(change.new),
        )
        if isinstance(change.thing, Model):
            entry.thing_id = str(change.thing.pk)[:64]
        if change.team is not None:
            entry.team = str(change.team)
            entry.team_id = change.team.pk
        entries.append(entry)
    Entry.objects.bulk_create(entries)


def record_values(
    action: str,
    row: Model,
    new: Mapping[str, Any],
    old: Mapping[str, Any] | None = None,
    *,
    team: Model | None = None,
    by: User | None = None,
) -> None:
    """Add the row of a change of these fields, if any differs. `old`: none for a new thing."""
    if old is None:
        record(action, row, team=team, new=new, by=by)
        return
    changed = [name for name in new if old.get(name) != new[name]]
    if changed:
        old_values = {name: old.get(name) for name in changed}
        new_values = {name: new[name] for name in changed}
        record(action, row, team=team, old=old_values, new=new_values, by=by)


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
        items = list(value.items())[:MOST_ITEMS]
        return plain_values({str(name): item for name, item in items})
    if isinstance(value, Manager):
        value = value.all()
    if isinstance(value, list | tuple | set | frozenset | QuerySet):
        return [plain(item) for item in list(value)[:MOST_ITEMS]]
    return str(value)[:LONGEST]
