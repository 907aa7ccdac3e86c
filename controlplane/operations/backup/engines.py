"""Dump and load of databases: SQLite by its online backup, PostgreSQL by its tools."""

import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from django.db import connection, connections

from controlplane.loop.live.lock import CLOSED

ERA = 1_577_836_800
"""Beginning of 2020, in Unix seconds."""


def era_s() -> int:
    """Seconds since ERA; fences and epochs grow more slowly, so they never reach it."""
    return int(time.time()) - ERA


def fencing_statements(schema: str = "") -> list[str]:
    """SQL that fences a loaded dump, for every version's schema; `schema` prefixes tables."""
    return [
        # No round may be held until `restoring` has made the restored state safe.
        f"UPDATE {schema}clusters_cluster"  # noqa: S608  # nothing of a client's
        f" SET round_owner = '{CLOSED}.inf', round_expires_at = '2999-01-01 00:00:00'",
        # Whatever was launched after the backup, by a server that was itself restored from it too,
        # has a lower fence than whatever is launched from now on: a fixed stride would give the
        # same fences out again at a second restore. Sessions likewise.
        _fencing_of_jobs(schema),
        f"UPDATE {schema}clusters_node SET epoch = {_beyond('epoch')},"  # noqa: S608  # as above
        " session_secret_sha256 = '', session_expires_at = NULL",
    ]


def _fencing_of_jobs(schema: str) -> str:
    """Statement that raises the fence of every job.

    PostgreSQL writes the table anew: an update would leave as many dead rows among them, which
    made the restore of a million jobs take a quarter longer.
    """
    fence = _beyond("fence")
    if connection.vendor == "postgresql":
        return f"ALTER TABLE {schema}jobs_job ALTER COLUMN fence TYPE bigint USING {fence}"
    return f"UPDATE {schema}jobs_job SET fence = {fence}"  # noqa: S608  # nothing of a client's


def _beyond(column: str) -> str:
    return f"CASE WHEN {column} < {era_s()} THEN {era_s()} ELSE {column} + 1000000 END"


LIBPQ = (
    "dbname", "user", "host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey",
    "connect_timeout", "options", "service",
)  # fmt: skip


class BackupError(Exception):
    """Failed backup or restore; the text says why and what to do."""


class SqliteEngine:
    """Database file, copied by SQLite's online backup including its write-ahead log."""

    vendor = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path

    def dump(self, to: Path) -> None:
        """Write a consistent dump to a new file."""
        _copy(self.path, to)

    def refuse_other_connections(self) -> None:
        """Do nothing: SQLite cannot tell, and the copy is one transaction."""

    @contextmanager
    def staged(self, dump: Path) -> Iterator[None]:
        """Work on a copy beside the database, then replace its content in one transaction."""
        staging = self.path.with_name(f"{self.path.name}.restoring")
        _remove(staging)
        shutil.copyfile(dump, staging)
        staging.chmod(0o600)
        try:
            with _connected_to(staging):
                with connection.cursor() as cursor:
                    for statement in fencing_statements():
                        cursor.execute(statement)
                yield
            _copy(staging, self.path)
        finally:
            _remove(staging)


class PostgresEngine:
    """Server, by pg_dump, pg_restore and psql on the PATH in a matching version."""

    vendor = "postgresql"

    def dump(self, to: Path) -> None:
        """Write pg_dump's custom format; no comments, as only owners may set some."""
        options = ("--format=custom", "--no-owner", "--no-privileges", "--no-comments")
        with _running("pg_dump", *options, f"--file={to}", _address()):
            pass

    def refuse_other_connections(self) -> None:
        """Raise BackupError if other connections are found."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid"
                " <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            others = cursor.fetchone()[0]
        if others:
            raise BackupError(
                f"{others} others are connected to the database; stop web, worker and beat first"
                " (or use --force)"
            )

    def staged(self, dump: Path) -> AbstractContextManager[None]:
        """Drop, load and fence tables in one transaction; work in place.

        Nothing is committed but by the last line, so whoever is killed has changed nothing. Rows
        are fenced before there are indexes: with them a million jobs took 90 s.
        """
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT current_schema(), array(SELECT tablename FROM pg_tables WHERE schemaname ="
                " current_schema())"
            )
            schema, tables = cursor.fetchone()
        connection.close()
        restore = ("pg_restore", "--no-owner", "--no-privileges", "--file=-", str(dump))
        options = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", _address())
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        with _running("psql", *options, stdin=pipe, stdout=nothing) as psql:
            _say(psql, "BEGIN", *(f'DROP TABLE "{schema}"."{table}" CASCADE' for table in tables))
            with _running(*restore, "--section=pre-data", "--section=data", stdout=psql.stdin):
                pass
            _say(psql, *fencing_statements(f'"{schema}".'))
            with _running(*restore, "--section=post-data", stdout=psql.stdin):
                pass
            _say(psql, "COMMIT")
        return nullcontext()


def engine() -> SqliteEngine | PostgresEngine:
    """Return the engine of the default database. Raises BackupError for one that is not known."""
    if connection.vendor == "sqlite":
        return SqliteEngine(Path(str(connection.settings_dict["NAME"])))
    if connection.vendor == "postgresql":
        return PostgresEngine()
    raise BackupError(
        f"backups of {connection.vendor} are not known here; use SQLite or PostgreSQL"
    )


@contextmanager
def _connected_to(path: Path) -> Iterator[None]:
    """Use another SQLite file as default connection within."""
    usual = connections["default"]
    connections["default"] = type(usual)({**usual.settings_dict, "NAME": str(path)}, "default")
    try:
        yield
    finally:
        connections["default"].close()
        connections["default"] = usual


def _copy(source: Path, target: Path) -> None:
    with _sqlite(source) as read, _sqlite(target) as write:
        read.backup(write)


@contextmanager
def _sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(str(path), timeout=60)
    try:
        yield database
    except sqlite3.Error as error:
        raise BackupError(f"{path}: {error}") from error
    finally:
        database.close()


def _remove(path: Path) -> None:
    for name in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        name.unlink(missing_ok=True)


def _address() -> str:
    """Address for PostgreSQL's programs; the password goes by environment."""
    known: dict[str, Any] = connection.get_connection_params()
    values = {name: str(known[name]) for name in LIBPQ if known.get(name)}
    escaped = {n: v.replace("\\", "\\\\").replace("'", "\\'") for n, v in values.items()}
    return "--dbname=" + " ".join(f"{name}='{value}'" for name, value in escaped.items())


def _say(psql: subprocess.Popen[str], *statements: str) -> None:
    """Give psql statements; BackupError if it has ended."""
    try:
        print(*(f"{text};" for text in statements), sep="\n", file=psql.stdin, flush=True)
    except BrokenPipeError as error:
        raise BackupError("it takes no more") from error


@contextmanager
def _running(program: str, *arguments: str, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a program and wait for its end; BackupError with its words if it fails."""
    if shutil.which(program) is None:
        raise BackupError(
            f"{program} is not on the PATH; install PostgreSQL's client programs (Debian:"
            " postgresql-client)"
        )
    password = str(connection.settings_dict.get("PASSWORD") or "")
    environment = {**os.environ, **({"PGPASSWORD": password} if password else {})}
    command, failure = [program, *arguments], None
    with tempfile.TemporaryFile("w+") as words:
        with subprocess.Popen(command, env=environment, stderr=words, text=True, **streams) as done:
            try:
                yield done
            except BackupError as error:
                failure = error
        words.seek(0)
        if done.returncode:
            said = words.read().strip()[-2000:]
            raise BackupError(f"{program} failed: {said}") from failure
        if failure:
            raise failure
