"""Backups: what is in the file, what is refused, and that a restored house is safe."""

import json
import stat
import tarfile
import tempfile
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management import CommandError
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from clusters.models import Cluster, EnrolmentToken, Node
from clusters.services.enrolment import issue_enrolment_token
from controlplane.audit.models import Entry
from controlplane.loop.live.world import is_wanted
from controlplane.operations.backup import engines as backup_engines
from controlplane.operations.backup.backups import unpacked
from jobs.models import Assignment, Job, Secret, Team
from jobs.secrets import reveal, set_secret
from loadmaster.protocol import AssignmentState
from tests.builders import a_job, a_node, a_user
from tests.builders_agents import (
    an_offer,
    reconcile_clusters,
)
from tests.builders_backups import New, told
from tests.builders_clocks import Machine
from tests.builders_databases import sqlite_database
from tests.builders_live import a_round_of_waiting_events


def test_a_backup_is_one_file_for_its_owner_alone_with_a_true_manifest(
    house: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "lm.backup"
    said = told("backup", file)
    with unpacked(file) as (manifest, _):
        pass
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (manifest.vendor, manifest.has_keys) == (connection.vendor, False)
    assert set(manifest.migrations) == {
        f"{app}.{name}" for app, name in MigrationRecorder(connection).applied_migrations()
    }
    assert manifest.sha256 in said
    assert "Without the keys" in said
    with tarfile.open(file) as archive:
        assert archive.getnames() == ["manifest.json", "database"]
    assert not list(tmp_path.glob(".backup-*"))


def test_the_keys_go_into_the_file_only_where_that_is_said(
    house: Cluster, tmp_path: Path, new: New
) -> None:
    file, keys = tmp_path / "lm.backup", tmp_path / "keys.env"
    assert "keys are in it" in told("backup", file, with_key=True)
    with new():
        told("restore", file, keys_to=keys)
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    assert keys.read_text().startswith("SECRET_KEY=only-for-tests")
    told("backup", tmp_path / "without")
    with new(), pytest.raises(CommandError, match="made without --with-key"):
        told("restore", tmp_path / "without", keys_to=tmp_path / "other")


def test_a_backup_replaces_no_file_unless_told_so(house: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "lm.backup"
    file.write_text("precious")
    with pytest.raises(
        CommandError, match="exists; choose another name, or replace it with --force"
    ):
        told("backup", file)
    assert file.read_text() == "precious"
    told("backup", file, force=True)
    with unpacked(file) as (manifest, _):
        assert manifest.vendor == connection.vendor


def test_a_backup_that_fails_leaves_nothing_behind(house: Cluster, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        told("backup", tmp_path / "no" / "such" / "folder")
    assert list(tmp_path.glob("lm*")) == []


def test_a_database_without_loadmasters_tables_is_not_backed_up(
    house: Cluster, tmp_path: Path
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations")
    with pytest.raises(CommandError, match=r"no tables of Loadmaster; check that DATABASE_URL"):
        told("backup", tmp_path / "lm.backup")
    assert not (tmp_path / "lm.backup").exists()


def test_a_backup_of_a_sqlite_file_that_is_missing_neither_makes_it_nor_succeeds(
    tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> None:
    missing = tmp_path / "db.sqlite3"
    with (
        django_db_blocker.unblock(),
        sqlite_database(missing),
        pytest.raises(CommandError, match=r"db\.sqlite3 does not exist; check that DATABASE_URL"),
    ):
        told("backup", tmp_path / "lm.backup")
    assert list(tmp_path.iterdir()) == []


def test_what_was_in_the_database_is_in_the_restored_one(
    house: Cluster, tmp_path: Path, new: New
) -> None:
    a_user("ada", team=Team.objects.get(name="vision"))
    set_secret(Team.objects.get(name="vision"), "wandb", "a value")
    told("backup", tmp_path / "b")
    with new():
        assert not User.objects.exists()
        said = told("restore", tmp_path / "b")
        assert User.objects.filter(username="ada").exists()
        assert Job.objects.get().name == "runs"
        assert reveal(Secret.objects.get()) == "a value"
        assert Entry.objects.latest("pk").action == "server.restore"
        assert Client().get("/readyz").status_code == 200
        User.objects.create_user("after")
    assert "rounds begin again" in said
    assert "do not open" not in said


def test_secrets_that_the_servers_key_does_not_open_are_named(
    house: Cluster, tmp_path: Path, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_SECRETS_KEY", "a2VwdC1kYXRhYmFzZS1rZXktZm9yLXRlc3RzLW9ubHk=")
    set_secret(Team.objects.get(name="vision"), "wandb", "a value")
    told("backup", tmp_path / "b")
    monkeypatch.delenv("LOADMASTER_SECRETS_KEY")
    with new():
        assert "vision/wandb" in told("restore", tmp_path / "b")


def test_a_database_with_something_in_it_is_replaced_only_by_force(
    house: Cluster, tmp_path: Path, new: New
) -> None:
    told("backup", tmp_path / "b")
    with new():
        a_user("somebody")
        with pytest.raises(CommandError, match=r"has users in it.*--force"):
            told("restore", tmp_path / "b")
        assert User.objects.filter(username="somebody").exists()
        told("restore", tmp_path / "b", force=True)
        assert not User.objects.filter(username="somebody").exists()
        assert Job.objects.count() == 1


def rewritten(file: Path, to: Path, **changes: object) -> Path:
    """The backup with another manifest."""
    with tarfile.open(file) as old, tarfile.open(to, "w") as new:
        for member in old.getmembers():
            stream = old.extractfile(member)
            assert stream is not None
            content = stream.read()
            if member.name == "manifest.json":
                content = json.dumps({**json.loads(content), **changes}).encode()
            member.size = len(content)
            new.addfile(member, BytesIO(content))
    return to


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sha256": "0" * 64}, "the backup is damaged"),
        ({"format": 9}, "format 9, this version reads format 1"),
        ({"vendor": "oracle"}, "the backup is of oracle"),
        (
            {"version": "9.9", "migrations": ["jobs.0999_later"]},
            r"version 9\.9, whose schema is newer .*jobs\.0999_later",
        ),
        ({"size": "many", "odd": 1}, "no backup of Loadmaster"),
    ],
)
def test_a_backup_that_does_not_fit_is_refused_and_nothing_changes(
    house: Cluster, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    told("backup", tmp_path / "b")
    other = rewritten(tmp_path / "b", tmp_path / "other", **changes)
    with pytest.raises(CommandError, match=words):
        told("restore", other, force=True)
    assert Job.objects.get().name == "runs"


def test_what_is_no_archive_is_refused(house: Cluster, tmp_path: Path) -> None:
    (tmp_path / "b").write_text("x" * 20_000)
    with pytest.raises(CommandError, match="cannot be read as a backup"):
        told("restore", tmp_path / "b", force=True)


@pytest.mark.parametrize(
    "error", [None, PermissionError(13, "not yours"), OSError(30, "read-only")]
)
def test_a_dump_is_unpacked_beside_the_backup_and_in_the_temporary_folder_if_that_is_refused(
    house: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    told("backup", tmp_path / "b")
    temporary, make = tmp_path / "temporary", tempfile.TemporaryFile
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def refusing(**given: Any) -> object:
        if given and error:
            raise error
        return make(**given)

    monkeypatch.setattr(tempfile, "TemporaryFile", refusing)
    with unpacked(tmp_path / "b") as (_, dump):
        assert dump.readlink().parent == (temporary if error else tmp_path)


def test_fences_and_epochs_are_beyond_all_that_can_have_been(
    house: Cluster, tmp_path: Path, new: New
) -> None:
    before = {"fence": Job.objects.get().fence, "epoch": Node.objects.get().epoch}
    told("backup", tmp_path / "b")
    with new():
        told("restore", tmp_path / "b")
        assert Job.objects.get().fence > before["fence"] + 1_000_000
        node = Node.objects.get()
        assert node.epoch > before["epoch"] + 1_000_000
        assert node.session_expires_at is None


def test_a_backup_that_is_restored_once_more_gives_out_no_fence_and_no_epoch_again(
    house: Cluster, tmp_path: Path, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    told("backup", tmp_path / "b")
    fences, epochs = [], []
    for at_s in (200_000_000, 200_003_600):
        monkeypatch.setattr(backup_engines, "era_s", lambda at_s=at_s: at_s)
        with new():
            told("restore", tmp_path / "b")
            fences.append(Job.objects.get().fence)
            epochs.append(Node.objects.get().epoch)
    an_hour_of_launches = 500
    assert fences[1] > fences[0] + an_hour_of_launches
    assert epochs[1] > epochs[0] + an_hour_of_launches


def test_fences_that_are_already_beyond_the_clock_grow_all_the_same(
    house: Cluster, tmp_path: Path, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_engines, "era_s", lambda: -5)
    before = Job.objects.get().fence
    told("backup", tmp_path / "b")
    with new():
        told("restore", tmp_path / "b")
        assert Job.objects.get().fence == before + 1_000_000


def test_what_ran_waits_for_its_agent_what_was_offered_is_withdrawn_and_no_round_is_held(
    house: Cluster, tmp_path: Path, new: New
) -> None:
    an_offer(a_node(house), a_job(house, name="offered"))
    told("backup", tmp_path / "b")
    with new():
        before = timezone.now()
        told("restore", tmp_path / "b")
        ran = Assignment.objects.get(job__name="runs")
        assert ran.state == AssignmentState.UNKNOWN
        assert ran.lease_expires_at is not None
        restored_at = ran.lease_expires_at - timedelta(seconds=60)
        assert before <= restored_at <= timezone.now()
        assert Assignment.objects.get(job__name="offered").state == AssignmentState.PREEMPTED
        assert Job.objects.get(name="offered").state == "queued"
        cluster = Cluster.objects.get()
        assert cluster.round_expires_at is not None
        assert cluster.round_expires_at >= ran.lease_expires_at + timedelta(seconds=40)
        assert is_wanted(cluster.pk)
        here = Machine()
        assert a_round_of_waiting_events(cluster, watch=here.watch) is None
        reconcile_clusters(restored_at + timedelta(seconds=99))
        assert Assignment.objects.get(job__name="runs").state == AssignmentState.UNKNOWN
        later = restored_at + timedelta(seconds=120)
        reconcile_clusters(later)
        assert Job.objects.get(name="runs").state == "queued"
        assert a_round_of_waiting_events(cluster, watch=here.after(99)) is None
        at_s = later.timestamp()
        assert a_round_of_waiting_events(cluster, at_s=at_s, watch=here.after(2)) is not None


def test_sessions_and_enrolment_tokens_of_before_open_nothing(
    house: Cluster, tmp_path: Path, new: New
) -> None:
    issue_enrolment_token(house)
    client = Client()
    client.force_login(a_user("ada"))
    told("backup", tmp_path / "b")
    with new():
        told("restore", tmp_path / "b")
        assert not Session.objects.exists()
        assert not EnrolmentToken.objects.filter(expires_at__gt=timezone.now()).exists()


def test_more_time_can_be_asked_for(house: Cluster, tmp_path: Path, new: New) -> None:
    told("backup", tmp_path / "b")
    with new():
        with pytest.raises(CommandError, match="--wait-s must be 0 to 345600, not 1e\\+06"):
            told("restore", tmp_path / "b", wait_s=1e6)
        told("restore", tmp_path / "b", wait_s=5000.0)
        until = Cluster.objects.get().round_expires_at
        assert until is not None
        assert until > timezone.now() + timedelta(seconds=4900)


def test_a_longer_grace_that_a_launch_was_promised_is_waited_for(
    house: Cluster, tmp_path: Path, new: New
) -> None:
    Assignment.objects.update(grace_s=500.0)
    told("backup", tmp_path / "b")
    with new():
        told("restore", tmp_path / "b")
        until = Cluster.objects.get().round_expires_at
        assert until is not None
        assert until > timezone.now() + timedelta(seconds=60 + 500)
