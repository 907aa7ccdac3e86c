"""manage.py prune: let old snapshots, output and samples go, as beat does every hour."""

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from controlplane.audit.record import record
from controlplane.operations.retention import RULES, kept, prune


class Command(BaseCommand):
    help = "Delete old snapshots, output and samples; docs/backup.md says how long each is kept"

    def add_arguments(self, parser: ArgumentParser) -> None:
        text = "stop after about this long (default 3600)"
        parser.add_argument("--seconds", type=float, default=3600.0, help=text)
        names = [rule.name for rule in RULES]
        text = "prune only this sort of data; may be repeated"
        parser.add_argument("--only", action="append", default=[], choices=names, help=text)
        text = "show how long each sort of data is kept, and change nothing"
        parser.add_argument("--show", action="store_true", help=text)

    def handle(
        self, *args: Any, seconds: float, only: list[str], show: bool, **options: Any
    ) -> None:
        try:
            if show:
                for name, days in kept():
                    self.stdout.write(f"{name}: {_in_words(days)}")
                return
            deleted = prune(timezone.now(), budget_s=seconds, names=tuple(only))
            if deleted:
                record("server.prune", "old data", new=deleted)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        for name, count in deleted.items():
            self.stdout.write(f"{name}: {count}")
        if not deleted:
            self.stdout.write("no data was old enough")


def _in_words(days: float | None) -> str:
    """Time for which data is kept: "30 days", "for ever" (None), "until it expires" (0)."""
    if days is None:
        return "for ever"
    return f"{days:g} days" if days else "until it expires"
