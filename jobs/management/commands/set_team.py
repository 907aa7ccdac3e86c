"""manage.py set_team NAME [--weight W] [--order fairness|fifo]: create or change a team."""

from argparse import ArgumentParser
from typing import Any

from clusters.management.operators import OperatorCommand
from jobs.models.teams import Order
from jobs.people import team_saved


class Command(OperatorCommand):
    help = "Make a team, or change its weight or order; people come in by set_person --team"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--weight", type=float, help="its fair share against other teams (1)")
        parser.add_argument(
            "--order",
            choices=Order.values,
            help="how its own jobs share that: by their weights, or in a queue (fairness)",
        )

    def handle(
        self, *args: Any, name: str, weight: float | None, order: str | None, **options: Any
    ) -> None:
        team = team_saved(name, weight, order)
        members = ", ".join(sorted(team.members.values_list("username", flat=True))) or "nobody yet"
        queued = ", first in, first out" if team.order == Order.FIFO else ""
        self.stdout.write(f"team {team.name}, weight {team.weight:g}{queued}: {members}")
