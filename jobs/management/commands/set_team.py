"""manage.py set_team NAME [--weight W] [--order fairness|fifo] [--max-... N]: set up a team."""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from django.db.models import FloatField

from clusters.management.operators import OperatorCommand, finite
from jobs.models import Team
from jobs.models.teams import Order
from jobs.people import save_team

NONE = "none"
UNSAID = object()
"""Value of an option that is not given, where None is a value."""


def limit(text: str) -> int | None:
    """Parse a quota: a whole number, or none."""
    return None if text == NONE else int(text)


def parser_of(field: Any) -> Callable[[str], float | None]:
    """Return the reader of a limit's option."""
    if field.null:
        return limit
    return finite if isinstance(field, FloatField) else int


class Command(OperatorCommand):
    help = "Make a team, or change its settings and limits; set_person --team adds people"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--weight", type=float, help="its fair share against other teams (1)")
        parser.add_argument(
            "--order",
            choices=Order.values,
            help="how its jobs share: by their weights (fairness) or in a queue (fifo)",
        )
        for name in Team.LIMITS:
            field: Any = Team._meta.get_field(name)
            option, said = f"--{name.replace('_', '-')}", field.help_text.replace("empty", NONE)
            parser.add_argument(option, type=parser_of(field), default=UNSAID, help=said)

    def handle(self, *args: Any, name: str, **options: Any) -> None:
        given = {field: options[field] for field in Team.LIMITS if options[field] is not UNSAID}
        given |= {f: options[f] for f in ("weight", "order") if options[f] is not None}
        team = save_team(name, given)
        rows = team.membership_set.order_by("user__username").values_list("user__username", "role")
        members = ", ".join(f"{name} ({role})" for name, role in rows) or "nobody yet"
        queued = ", first in, first out" if team.order == Order.FIFO else ""
        self.stdout.write(f"team {team.name}, weight {team.weight:g}{queued}: {members}")
        limits = {field: getattr(team, field) for field in Team.LIMITS}
        shown = (f"{field} {NONE if v is None else f'{v:g}'}" for field, v in limits.items())
        self.stdout.write(f"limits: {', '.join(shown)}")
