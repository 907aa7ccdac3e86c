"""`manage.py replay_round ID`: decide a stored round again; exit 1 if the plans differ."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.loop.recompute import RoundNotFoundError, digests, find_round, replay


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("round", help="id of the round, or cluster:number")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            row = find_round(options["round"])
            plan = replay(row)
        except RoundNotFoundError as error:
            raise CommandError(str(error)) from None
        stored, again = digests(row, plan)
        self.stdout.write(f"stored   {stored}\nreplayed {again}")
        if again != stored:
            failed = f" (a policy failed: stored {row.message!r}, replayed {plan.message!r})"
            shown = failed if row.message or plan.message else ""
            raise CommandError(f"the plans differ{shown}", returncode=1)
