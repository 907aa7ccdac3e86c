"""Dump and load of each kind of database: whole, or not at all."""

import os
import signal
import sqlite3
import subprocess
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError
from django.db import DatabaseError, connection, connections
from django.utils import timezone

from clusters.models import Cluster
from controlplane.operations.backup import engines as backup_engines
from jobs.models import JobEvent
from jobs.moves import note_job
from tests.builders import a_user
from tests.builders_backups import New, told
from tests.builders_databases import database_of


def schema() -> list[str]:
    """What makes the tables, keys and indexes of the default database, in order."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY sql")
            return [sql for (sql,) in cursor.fetchall()]
    address = backup_engines._address()
    command = ["pg_dump", "--schema-only", "--no-owner", "--no-comments", address]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # PostgreSQL writes lists of values in two ways, and reads its own as the other.
    return [line for line in said.splitlines() if line[:1] != "\\" and "ANY (" not in line]


def left_of_restores() -> list[str]:
    if connection.vendor == "sqlite":
        path = Path(str(connection.settings_dict["NAME"]))
        return [file.name for file in path.parent.glob(f"{path.name}.restoring*")]
    with connection.cursor() as cursor:
        cursor.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%restoring%'")
        return [name for (name,) in cursor.fetchall()]


def test_keys_indexes_and_numbers_of_rows_go_on_as_before(
    house: Cluster, tmp_path: Path, new: New
) -> None:
    job = house.jobs.get()
    note_job(job, "deleted", actor="a test").delete()
    newest, before = JobEvent.objects.latest("pk").pk + 1, schema()
    assert len(before) > 200
    told("backup", tmp_path / "b")
    with new():
        told("restore", tmp_path / "b")
        assert schema() == before
        assert not left_of_restores()
        # A number that was given before the backup is not given again, though its row is gone.
        assert note_job(house.jobs.get(), "next", actor="a test").pk > newest


def test_of_two_restores_at_the_same_time_one_is_refused(
    house: Cluster, tmp_path: Path, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    told("backup", tmp_path / "b")
    refusals = []

    def meanwhile(*prefix: str) -> list[str]:
        monkeypatch.undo()
        connections["default"], usual = connection.copy(), connections["default"]
        try:
            with pytest.raises(CommandError, match="another restore is under way"):
                told("restore", tmp_path / "b", force=True)
            refusals.append(1)
        finally:
            connections["default"].close()
            connections["default"] = usual
        return backup_engines.fencing_statements(*prefix)

    with new():
        monkeypatch.setattr(backup_engines, "fencing_statements", meanwhile)
        told("restore", tmp_path / "b")
        assert refusals
        assert Cluster.objects.exists()


def test_a_restore_that_breaks_off_leaves_the_database_of_before_or_one_that_launches_nothing(
    house: Cluster, tmp_path: Path, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    told("backup", tmp_path / "b")

    def broken(*_: object) -> None:
        raise RuntimeError("out of power")

    with new():
        a_user("somebody")
        monkeypatch.setattr("controlplane.operations.backup.restoring.make_safe", broken)
        with pytest.raises(RuntimeError, match="out of power"):
            told("restore", tmp_path / "b", force=True)
        if connection.vendor == "sqlite":
            assert User.objects.get().username == "somebody"
        else:
            until = Cluster.objects.get().round_expires_at
            assert until is not None
            assert until > timezone.now() + timedelta(days=3650)


def test_a_restore_that_is_killed_leaves_the_database_of_before_and_no_copy_of_the_other(
    house: Cluster, tmp_path: Path, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    told("backup", tmp_path / "b")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def killed(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with new():
        a_user("somebody")
        connection.close()
        if (child := os.fork()) == 0:  # killed with the rows read, before they are fenced
            monkeypatch.setattr(backup_engines, "fencing_statements", killed)
            try:
                told("restore", tmp_path / "b", force=True)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        assert not list(temporary.iterdir())
        assert User.objects.get().username == "somebody"
        assert not Cluster.objects.exists()
        told("restore", tmp_path / "b", force=True)
        assert Cluster.objects.exists()
        assert not left_of_restores()


@pytest.mark.postgres
@pytest.mark.parametrize("empty", ["postgresql"], indirect=True)
def test_a_role_that_may_not_make_a_schema_is_told_so_and_changes_nothing(
    house: Cluster, tmp_path: Path
) -> None:
    told("backup", tmp_path / "b")
    with connection.cursor() as cursor:
        cursor.execute("DROP ROLE IF EXISTS weak; CREATE ROLE weak LOGIN")
        cursor.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO weak")
    weak = connection.copy()
    weak.settings_dict["USER"] = "weak"
    with database_of(weak), pytest.raises(CommandError, match="permission denied for database"):
        told("restore", tmp_path / "b", force=True)
    assert Cluster.objects.exists()


def test_a_dump_that_is_cut_short_leaves_the_database_of_before(
    house: Cluster, tmp_path: Path, new: New
) -> None:
    dump = tmp_path / "dump"
    backup_engines.engine().dump(dump)
    os.truncate(dump, dump.stat().st_size * 2 // 3)
    with new():
        a_user("somebody")
        errors = (backup_engines.BackupError, DatabaseError)
        with (
            pytest.raises(errors, match=r"pg_restore|malformed"),
            backup_engines.engine().staged(dump),
        ):
            pass
        assert User.objects.get().username == "somebody"


def test_the_online_copy_has_what_stands_in_the_write_ahead_log(tmp_path: Path) -> None:
    writer = sqlite3.connect(tmp_path / "a")
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("CREATE TABLE t (x)")
    writer.execute("INSERT INTO t VALUES (1)")
    writer.commit()
    assert (tmp_path / "a-wal").stat().st_size > 0
    backup_engines.SqliteEngine(tmp_path / "a").dump(tmp_path / "b")
    writer.close()
    assert sqlite3.connect(tmp_path / "b").execute("SELECT x FROM t").fetchall() == [(1,)]


def test_programs_that_are_missing_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        backup_engines.BackupError, match=r"pg_dump is not on the PATH; install .*postgresql-client"
    ):
        backup_engines.PostgresEngine().dump(tmp_path / "database")
