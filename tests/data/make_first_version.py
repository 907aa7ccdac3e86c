"""Make the kept database of the first version: run it in a checkout of that version, see README.md.

    python tests/data/make_first_version.py FOLDER      (SQLite, or the PostgreSQL database that
    DATABASE_URL names)

It migrates an empty database, lives through a small history with the version's own code, so that
every table of the house has rows, and writes into FOLDER the database (first-version.sqlite3.gz or
first-version.sql.gz) and what a reader has to find in it (first-version.json).
"""

import gzip
import json
import os
import runpy
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import django

ENVIRONMENT = {
    "SECRET_KEY": "the-secret-key-of-the-kept-database-" + "0123456789" * 3,
    "LOADMASTER_SECRETS_KEY": "a2VwdC1kYXRhYmFzZS1rZXktZm9yLXRlc3RzLW9ubHk=",
    "DJANGO_SETTINGS_MODULE": "tests.settings",
}


def main(folder: Path) -> None:
    """Make it and write it."""
    os.environ.update(ENVIRONMENT)
    sys.path.insert(0, str(Path.cwd()))
    django.setup()
    from django.core.management import call_command
    from django.db import connection

    call_command("migrate", verbosity=0)
    lived = runpy.run_path(str(Path(__file__).with_name("first_version_history.py")))
    expected = lived["expectations"](lived["history"]())
    postgres = connection.vendor == "postgresql"
    database = str(connection.settings_dict["NAME"])
    connection.close()
    (folder / "first-version.json").write_text(json.dumps(expected, indent=1, default=str) + "\n")
    if postgres:
        (folder / "first-version.sql.gz").write_bytes(
            gzip.compress(_dumped(os.environ["DATABASE_URL"]), 9, mtime=0)
        )
    else:
        (folder / "first-version.sqlite3.gz").write_bytes(
            gzip.compress(_copied(database), 9, mtime=0)
        )


def _dumped(url: str) -> bytes:
    """Plain SQL that needs no psql to be read: rows as INSERTs."""
    command = ["pg_dump", "--no-owner", "--no-privileges", "--inserts", url]
    return subprocess.run(command, check=True, capture_output=True).stdout


def _copied(database: str) -> bytes:
    with tempfile.TemporaryDirectory() as work:
        copy = Path(work) / "copy.sqlite3"
        source = sqlite3.connect(database)
        source.execute("VACUUM INTO ?", (str(copy),))
        source.close()
        return copy.read_bytes()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
