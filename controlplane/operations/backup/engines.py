"""Dump and load of databases: SQLite by its online backup, PostgreSQL by its tools."""

import fcntl
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import DatabaseError, Error, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from controlplane.loop.live.lock import CLOSED
from controlplane.web.storage.turns import Rank, flag_suffix

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
        # Each launch from now on has a higher fence than every launch after the backup, also if
        # that was by a server restored from the same backup: a fixed stride would give the same
        # fences out again at a second restore. Sessions likewise.
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
    """SQL for a value of the column above all that it can have had until now."""
    return f"CASE WHEN {column} < {era_s()} THEN {era_s()} ELSE {column} + 1000000 END"


LIBPQ = (
    "dbname",
    "user",
    "host",
    "port",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "connect_timeout",
    "options",
    "service",
)
"""Parameters of a connection that PostgreSQL's programs take in an address."""

CHECK = "check that DATABASE_URL is the server's, and in quotes if a shell reads it"

UNDER_WAY = "another restore is under way; wait until it has ended"


class BackupError(Exception):
    """Failed backup or restore; the text says why and what to do."""


class SqliteEngine:
    """Database file, copied by SQLite's online backup including its write-ahead log."""

    vendor = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path

    def dump(self, to: Path) -> None:
        """Write a consistent dump to a new file. Raises BackupError where there is no database."""
        if not self.path.is_file():  # SQLite would make an empty one
            raise BackupError(f"{self.path} does not exist; {CHECK}")
        _copy(self.path, to)

    def refuse_other_connections(self) -> None:
        """Do nothing: SQLite cannot tell, and the copy is one transaction."""

    @contextmanager
    def staged(self, dump: Path) -> Iterator[None]:
        """Work on a copy beside the database, then replace its content in one transaction."""
        staging = self.path.with_name(f"{self.path.name}.restoring")
        with _alone_in(self.path.parent):
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
    """Server, by pg_dump and pg_restore on the PATH in a matching version."""

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
                f"{others} other programs use the database; stop web, worker and beat first"
                " (or use --force)"
            )

    def staged(self, dump: Path) -> AbstractContextManager[None]:
        """Load a dump into a schema of its own, swap it in one transaction; work in place.

        A restore that is killed has changed nothing but that schema, which the next one drops.
        """
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(hashtext(%s))", [STAGING])
            if not cursor.fetchone()[0]:
                raise BackupError(UNDER_WAY)
            try:
                cursor.execute(f"{_DROP_STAGING}; CREATE SCHEMA {STAGING}")
                contents = _output("pg_restore", "--list", str(dump))
                _Load(dump, connections["default"].copy, contents).run()
                with transaction.atomic():
                    _swap(cursor)
            except DatabaseError as error:
                raise BackupError(f"the database refuses the dump: {error}") from error
            finally:
                with suppress(Error):
                    cursor.execute(_DROP_STAGING)
                connection.close()  # and with it the lock
        return nullcontext()


STAGING = "loadmaster_restoring"
"""PostgreSQL's schema into which a dump is loaded."""

AT_ONCE = min(4, os.cpu_count() or 1)
"""Tables loaded, or indexes built, at a time."""

_DROP_STAGING = f"DROP SCHEMA IF EXISTS {STAGING} CASCADE"

_TABLES_SCHEMA = re.compile(r"\b(TABLE |ONLY |ON |NAME |REFERENCES |COPY |setval\(')\w+\.")
_ENTRY = re.compile(r"^\d+; \d+ \d+ ([A-Z ]+) \S+ (\S+).*$", re.MULTILINE)
"""Line of a dump's list of contents: what it is, its schema, and its name."""

_RESTORE = ("pg_restore", "--no-owner", "--no-privileges", "--file=-")


def _execute(cursor: Any, statement: str) -> None:
    cursor.execute(statement)


@dataclass(frozen=True, slots=True)
class _Load:
    """Loads a dump into STAGING, as many parts at a time as there are processors."""

    dump: Path
    connect: Callable[[], BaseDatabaseWrapper]
    contents: str

    def run(self) -> None:
        """Load all of it. Raises DatabaseError or BackupError."""
        # 1. Empty tables. The server's own vacuum would take a processor, and hold up the swap.
        for kind in ("EXTENSION", "TABLE", "SEQUENCE"):
            self._each(["".join(self._statements(kind))])
        staged_tables = _tables(STAGING)
        no_vacuum = [
            f"ALTER TABLE {name} SET (autovacuum_enabled = false)" for name in staged_tables
        ]
        self._each(no_vacuum)

        # 2. Their rows.
        tables = [entry[2] for entry in _ENTRY.finditer(self.contents) if entry[1] == "TABLE DATA"]
        self._each(tables, self._copy_rows)

        # 3. Fences, before there are indexes: with them a million jobs took 90 s. Then keys and
        #    indexes.
        fences = fencing_statements(f"{STAGING}.")
        self._each([*fences, *self._statements("SEQUENCE SET"), *self._statements("CONSTRAINT")])
        self._each(self._statements("INDEX"))

        # 4. Foreign keys. They are added at once and checked later: two that are added at a time
        #    may wait for each other's locks.
        foreign_keys = "".join(self._statements("FK CONSTRAINT"))
        unchecked = re.sub(
            r"( FOREIGN KEY .*);$", r"\1 NOT VALID;", foreign_keys, flags=re.MULTILINE
        )
        self._each([unchecked])
        self._each(_checks())

        # 5. Statistics for the planner.
        self._each([f"ANALYZE {name}" for name in staged_tables])

    def _each(self, items: Sequence[str], do: Callable[[Any, str], None] = _execute) -> None:
        """Do it for each, AT_ONCE at a time, until one raises DatabaseError or BackupError."""
        waiting = deque(items)

        def work() -> None:
            with closing(self.connect()) as own, own.cursor() as cursor:
                try:
                    cursor.execute("SET statement_timeout = 0")  # a role may have one, for pages
                    while True:
                        try:
                            item = waiting.popleft()
                        except IndexError:  # all are done, or being done
                            return
                        do(cursor, item)
                finally:
                    waiting.clear()  # after an error no other begins

        with ThreadPoolExecutor(AT_ONCE) as pool:
            workers = [pool.submit(work) for _ in range(min(AT_ONCE, len(items)))]
            for worker in workers:
                worker.result()

    def _statements(self, kind: str) -> list[str]:
        """Statements that make what the dump has of a kind."""
        entries = [entry[0] for entry in _ENTRY.finditer(self.contents) if entry[1] == kind]
        with tempfile.TemporaryFile("w") as selection:
            print(*entries, sep="\n", file=selection, flush=True)
            selection.seek(0)
            text = _output(*_RESTORE, "--use-list=/dev/stdin", str(self.dump), stdin=selection)
        # Comments of three lines separate the statements; before them stand settings.
        _, _, *statements, _ = re.split(r"^--\n-- .*\n--\n", text, flags=re.MULTILINE)
        return [_in_staging(statement) for statement in statements]

    def _copy_rows(self, cursor: Any, table: str) -> None:
        """Load the rows of a table, which follow a COPY statement."""
        command = (*_RESTORE, "--section=data", f"--table={table}", str(self.dump))
        with _running(*command, stdout=subprocess.PIPE) as process:
            for line in process.stdout or ():
                if line.startswith(b"COPY "):
                    cursor.copy_expert(_in_staging(line.decode()), process.stdout, size=1 << 20)


def _in_staging(statement: str) -> str:
    """Statement with STAGING in place of the schema that the dump names."""
    return _TABLES_SCHEMA.sub(rf"\1{STAGING}.", statement)


def _tables(schema: str) -> list[str]:
    """Quoted names of a schema's tables, with the schema's."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT format('%%I.%%I', schemaname, tablename) FROM pg_tables WHERE schemaname = %s",
            [schema],
        )
        return [table for (table,) in cursor.fetchall()]


def _checks() -> list[str]:
    """Statements that check the foreign keys of STAGING, one for each table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT format('ALTER TABLE %%s ', conrelid::regclass)"
            " || string_agg(format('VALIDATE CONSTRAINT %%I', conname), ', ') FROM pg_constraint"
            " WHERE connamespace = %s::regnamespace AND NOT convalidated GROUP BY conrelid",
            [STAGING],
        )
        return [statement for (statement,) in cursor.fetchall()]


def _swap(cursor: Any) -> None:
    """Put the tables of STAGING in the place of those in use."""
    cursor.execute("SELECT current_schema()")
    (schema,) = cursor.fetchone()
    for table in _tables(schema):
        cursor.execute(f"DROP TABLE {table} CASCADE")
    for table in _tables(STAGING):
        cursor.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")
        cursor.execute(f"ALTER TABLE {table} SET SCHEMA {connection.ops.quote_name(schema)}")


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
    settings = {**usual.settings_dict, "NAME": str(path)}
    connections["default"] = type(usual)(settings, "default")
    try:
        yield
    finally:
        connections["default"].close()
        connections["default"] = usual


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock within; BackupError if another holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise BackupError(UNDER_WAY) from error
    finally:
        os.close(descriptor)


def _copy(source: Path, target: Path) -> None:
    with _sqlite(source) as read, _sqlite(target) as write:
        read.backup(write)


@contextmanager
def _sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a SQLite file within; BackupError for its errors."""
    database = sqlite3.connect(str(path), timeout=60)
    try:
        yield database
    except sqlite3.Error as error:
        raise BackupError(f"{path}: {error}") from error
    finally:
        database.close()


def _remove(path: Path) -> None:
    """Remove an SQLite database with its log, the log's index, and the flags of its writers."""
    for beside in ("", "-wal", "-shm", *(flag_suffix(rank) for rank in Rank)):
        path.with_name(f"{path.name}{beside}").unlink(missing_ok=True)


def _address() -> str:
    """Address for PostgreSQL's programs; the password goes by environment."""
    parameters: dict[str, Any] = connection.get_connection_params()
    words = []
    for name in LIBPQ:
        if parameters.get(name):
            value = str(parameters[name]).replace("\\", "\\\\").replace("'", "\\'")
            words.append(f"{name}='{value}'")
    return "--dbname=" + " ".join(words)


def _output(program: str, *arguments: str, **streams: Any) -> str:
    """Return what a program writes; BackupError with its words if it fails."""
    with _running(program, *arguments, stdout=subprocess.PIPE, **streams) as process:
        return process.communicate()[0].decode()


@contextmanager
def _running(program: str, *arguments: str, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program and wait for its end; BackupError with its words if it fails."""
    if shutil.which(program) is None:
        raise BackupError(
            f"{program} is not on the PATH; install PostgreSQL's client programs (Debian:"
            " postgresql-client)"
        )
    environment = dict(os.environ)
    password = str(connection.settings_dict.get("PASSWORD") or "")
    if password:
        environment["PGPASSWORD"] = password

    # The program's own failure tells more than that of what reads its output.
    failure = None
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            [program, *arguments], env=environment, stderr=errors, **streams
        ) as process:
            try:
                yield process
            except BackupError as error:
                failure = error
        errors.seek(0)
        if process.returncode:
            text = errors.read().strip()[-2000:]
            raise BackupError(f"{program} failed: {text}") from failure
        if failure:
            raise failure
