"""manage.py restore FILE: load a backup, migrate it, make it safe. Stop servers first."""

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.audit.record import record
from controlplane.operations.backup.backups import keys_of
from controlplane.operations.backup.engines import BackupError
from controlplane.operations.backup.restoring import Restored, restore_backup

LONGEST_WAIT_S = 4 * 86_400.0
"""Longer than lease, grace and margin together may be."""


class Command(BaseCommand):
    help = "Replace the database by a backup; stop web, worker and beat before, see docs/backup.md"
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path)
        text = "replace a database that has data in it, or that other programs use"
        parser.add_argument("--force", action="store_true", help=text)
        text = "write the keys in the backup to this new file (mode 0600), NAME=value"
        parser.add_argument("--keys-to", type=Path, help=text)
        text = (
            "start no round for at least so many seconds: the longest lease since the backup, if it"
            " was longer than the backup says"
        )
        parser.add_argument("--wait-s", type=float, default=0.0, help=text)

    def handle(self, *args: Any, file: Path, keys_to: Path | None, **options: Any) -> None:
        try:
            if keys_to is not None:
                _write_keys(keys_to, keys_of(file))
            wait_s = options["wait_s"]
            if not 0.0 <= wait_s <= LONGEST_WAIT_S:
                raise CommandError(f"--wait-s must be 0 to {LONGEST_WAIT_S:.0f}, not {wait_s:g}")
            restored = restore_backup(file, force=options["force"], least_wait_s=wait_s)
            record("server.restore", file.name, new={"saved_at": restored.manifest.created_at})
        except (BackupError, OSError) as error:
            raise CommandError(str(error)) from error
        for line in _words(restored):
            self.stdout.write(line)


def _words(restored: Restored) -> list[str]:
    """Lines on what was restored, and on what is still to be done."""
    manifest = restored.manifest
    lines = [
        f"Restored what version {manifest.version} had saved at {manifest.created_at}; the schema"
        " is this version's.",
        f"{restored.unknown} running assignments wait for their agents; {restored.withdrawn} offers"
        " were withdrawn.",
    ]
    for cluster, moment in restored.rounds_from.items():
        lines.append(f"{cluster}: rounds begin again at {moment.isoformat(timespec='seconds')}")
    lines.append(
        "Everybody must log in again; enrolment tokens have ended. API tokens revoked since the"
        " backup are valid again: revoke them."
    )
    if restored.closed_secrets:
        names = ", ".join(restored.closed_secrets)
        lines.append(
            f"This server's keys do not open these secrets: {names}. Set the old keys, or set the"
            " secrets again."
        )
    if not restored.cache_emptied:
        lines.append(
            "The cache could not be reached: empty it before you start the server (FLUSHDB)."
        )
    return lines


def _write_keys(path: Path, keys: dict[str, str]) -> None:
    """Write the keys to a new file of mode 0600, NAME=value each."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        for name, value in keys.items():
            if value:
                file.write(f"{name}={value}\n")
