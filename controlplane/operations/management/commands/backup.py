"""manage.py backup FILE: the database, whole, into one file; while the server runs."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.operations.backup.backups import write_backup
from controlplane.operations.backup.engines import BackupError


class Command(BaseCommand):
    help = "Back the database up into a file (mode 0600), while the server runs; see docs/backup.md"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path)
        text = "put the server's keys into the file too; guard it like them"
        parser.add_argument("--with-key", action="store_true", help=text)
        parser.add_argument("--force", action="store_true", help="replace the file if it exists")

    def handle(self, *args: Any, file: Path, with_key: bool, force: bool, **options: Any) -> None:
        try:
            manifest = write_backup(file.absolute(), with_keys=with_key, force=force)
        except BackupError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"{file}: {manifest.vendor}, {manifest.size} bytes, sha256 {manifest.sha256}"
        )
        if with_key:
            self.stdout.write(
                "The server's keys are in it: readers of the file can read the teams' secrets."
            )
        else:
            self.stdout.write(
                "Without the keys: keep SECRET_KEY and LOADMASTER_SECRETS_KEY elsewhere, or the"
                " teams' secrets are lost."
            )
