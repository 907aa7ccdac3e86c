"""`manage.py recompute_cost ROUND`: figures as stored, recomputed, and their difference."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.loop.recompute import Figure, RoundNotFoundError, find_round, recompute


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("round", help="id of the round, or cluster:number")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            row = find_round(options["round"])
        except RoundNotFoundError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(
            f"{row} ({row.policy}), {row.tariff or 'no tariff'}, {row.pue or 'no PUE'},"
            f" {row.cluster.currency}"
        )
        self.stdout.write(f"{'figure':<16} {'stored':>20} {'recomputed':>20} {'difference':>20}")
        for figure in recompute(row):
            self.stdout.write(_line(figure))


def _line(figure: Figure) -> str:
    numbers = (figure.stored, figure.recomputed, figure.difference)
    return f"{figure.name:<16} " + " ".join(
        f"{'-' if n is None else format(n, '.12g'):>20}" for n in numbers
    )
