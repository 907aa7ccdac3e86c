"""A database of the first version becomes one of today's, keeps all it had, and the house goes on
with it.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import F, UniqueConstraint
from pytest_django import DjangoDbBlocker

from clusters.models import Cluster, Node
from controlplane.accounting.models import EnergyEntry
from controlplane.loop.models import Round
from controlplane.loop.recompute import digests, find_round, recompute, replay
from jobs.models import (
    Assignment,
    Attempt,
    Job,
    Kind,
    LogChunk,
    Membership,
    ProgressPoint,
    Secret,
    TeamRole,
    UsagePoint,
)
from jobs.numbers import take_numbers
from jobs.secrets import reveal
from loadmaster.protocol import PROTOCOL_HEADER, PROTOCOL_VERSION, Heartbeat
from loadmaster.wire import dumps
from tests.builders_asgi import SiteClient
from tests.builders_databases import (
    first_version_postgres,
    first_version_sqlite,
    migrated,
    postgres_database,
    sqlite_database,
)
from tests.builders_live import a_round

SECRETS_KEY = "a2VwdC1kYXRhYmFzZS1rZXktZm9yLXRlc3RzLW9ubHk="
MAY_GROW = {
    "auth.Permission", "contenttypes.ContentType", "jobs.Kind", "profiling.Profile",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Upgraded:
    """A migrated database to copy (a file's path or a database's name), and what was in it
    before.
    """

    place: str
    facts: dict[str, Any]


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]
)
def upgraded(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[Upgraded]:
    """The first version's database with today's schema."""
    with django_db_blocker.unblock():
        if request.param == "sqlite":
            path = tmp_path_factory.mktemp("first") / "db.sqlite3"
            known = first_version_sqlite(path)
            with sqlite_database(path):
                migrated()
            yield Upgraded(str(path), known)
        else:
            with postgres_database() as name:
                known = first_version_postgres()
                migrated()
                connection.close()
                yield Upgraded(name, known)


@pytest.fixture
def facts(
    upgraded: Upgraded,
    tmp_path: Path,
    django_db_blocker: DjangoDbBlocker,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[dict[str, Any]]:
    """What was in the first version's database; the default one is a copy of it with today's
    schema.
    """
    monkeypatch.setenv("LOADMASTER_SECRETS_KEY", SECRETS_KEY)
    with django_db_blocker.unblock():
        if upgraded.place.startswith("/"):
            shutil.copyfile(upgraded.place, tmp_path / "db.sqlite3")
            with sqlite_database(tmp_path / "db.sqlite3"):
                yield upgraded.facts
        else:
            with postgres_database(upgraded.place):
                yield upgraded.facts


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_every_row_is_still_there(facts: dict[str, Any]) -> None:
    counts = {model._meta.label: model._default_manager.count() for model in apps.get_models()}
    wanted = {name: number for name, number in facts["counts"].items() if name not in MAY_GROW}
    assert {name: counts.get(name) for name in wanted} == wanted


def test_two_teams_that_had_one_kind_have_one_each_and_its_numbers(facts: dict[str, Any]) -> None:
    assert not Job.objects.exclude(kind__team=F("team")).exists()
    kinds = Kind.objects.filter(name="digits")
    assert {kind.team.name for kind in kinds if kind.team} == {"vision", "language"}
    assert {kind.profiles.count() for kind in kinds} == {3}


def test_who_was_in_a_team_may_do_all_there_that_they_could_before(facts: dict[str, Any]) -> None:
    assert {row.role for row in Membership.objects.all()} == {TeamRole.MAINTAINER}


def test_jobs_rounds_nodes_and_bills_are_what_they_were(facts: dict[str, Any]) -> None:
    jobs = {
        str(j.pk): [
            j.name,
            j.state,
            j.team.name,
            j.user.get_username(),
            j.fence,
            j.steps_done,
            j.checkpoint_steps,
        ]
        for j in Job.objects.select_related("team", "user")
    }
    rounds = {
        f"{r.cluster.name}:{r.number}": [r.status, r.snapshot_sha256, r.plan_sha256, r.objective]
        for r in Round.objects.all()
    }
    assignments = {
        str(a.pk): [a.state, a.fence, str(a.energy_cost)] for a in Assignment.objects.all()
    }
    nodes = {n.name: [n.state, n.role, n.epoch] for n in Node.objects.all()}
    assert (jobs, assignments) == (facts["jobs"], facts["assignments"])
    assert rounds == {
        name: pytest.approx(row) if row[3] is None else row for name, row in facts["rounds"].items()
    }
    assert nodes == {name: row[:3] for name, row in facts["nodes"].items()}


def test_old_jobs_have_numbers_and_new_ones_the_next(facts: dict[str, Any]) -> None:
    numbers = list(Job.objects.order_by("submitted_at", "pk").values_list("number", flat=True))
    assert len(numbers) == facts["counts"]["jobs.Job"]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert take_numbers(1) == [numbers[-1] + 1]


def test_no_migration_is_missing_and_migrating_again_changes_nothing(facts: dict[str, Any]) -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)
    before = set(MigrationRecorder(connection).applied_migrations())
    said = StringIO()
    call_command("migrate", verbosity=1, interactive=False, stdout=said)
    assert "No migrations to apply." in said.getvalue()
    assert set(MigrationRecorder(connection).applied_migrations()) == before
    call_command("check", database=["default"])


def test_no_foreign_key_has_an_index_that_repeats_the_beginning_of_another(
    facts: dict[str, Any],
) -> None:
    repeated = set()
    for model in (Job, Attempt, Assignment, LogChunk, ProgressPoint, UsagePoint, EnergyEntry):
        meta = model._meta
        unique = [each for each in meta.constraints if isinstance(each, UniqueConstraint)]
        longer = [
            each.fields[0]
            for each in (*meta.indexes, *unique)
            if len(each.fields) > 1 and each.condition is None
        ]
        firsts = {each.column for each in meta.concrete_fields if each.name in longer}
        with connection.cursor() as cursor:
            found = connection.introspection.get_constraints(cursor, meta.db_table).values()
        indexed = {tuple(each["columns"]) for each in found if each["index"]}
        repeated |= {(meta.db_table, first) for first in firsts if (first,) in indexed}
    # It is a quarter as large as those that begin with it, and counts of a team's jobs read it.
    assert repeated == {("jobs_job", "team_id")}


def test_people_log_in_and_see_their_jobs_by_page_and_by_token(facts: dict[str, Any]) -> None:
    client = SiteClient()
    client.force_login(User.objects.get(username="olga"))
    for path in (
        "/",
        "/rounds/",
        "/nodes/",
        "/timeline/",
        "/costs/",
        "/kinds/",
        "/readyz",
        "/metrics",
        "/admin/jobs/job/",
    ):
        answer = client.get(path, follow=True)
        assert answer.status_code == 200, path
    for pk, (name, *_) in facts["jobs"].items():
        assert name.encode() in client.get(f"/jobs/{pk}/").content
    listed = (
        SiteClient().get("/api/v1/jobs/?limit=100", headers=bearer(facts["tokens"]["ada"])).json()
    )
    mine = {pk for pk, row in facts["jobs"].items() if row[2] == "vision"}
    assert {job["id"] for job in listed["results"]} == mine


def test_nodes_are_known_by_their_tokens_and_secrets_open(facts: dict[str, Any]) -> None:
    for name, row in facts["nodes"].items():
        node = Node.objects.get(name=name)
        headers = {**bearer(row[3]), PROTOCOL_HEADER: str(PROTOCOL_VERSION)}
        beat = dumps(Heartbeat(node.epoch, node.heartbeat_seq + 1, 1e9))
        answer = SiteClient().post(
            f"/api/agent/v1/nodes/{node.pk}/heartbeat",
            beat,
            content_type="application/json",
            headers=headers,
        )
        assert answer.status_code == (200 if node.epoch else 409), (name, answer.content)
    assert reveal(Secret.objects.get(name="wandb")) == facts["secrets"]["wandb"]


def test_old_rounds_can_be_replayed_and_recomputed(facts: dict[str, Any]) -> None:
    for name in facts["rounds"]:
        row = find_round(name)
        stored, again = digests(row, replay(row))
        assert again == stored
        assert [figure.difference for figure in recompute(row)] == [
            pytest.approx(0.0, abs=1e-9)
        ] * 2


def test_the_loop_goes_on(facts: dict[str, Any]) -> None:
    cluster = Cluster.objects.get()
    row = a_round(cluster)
    assert (row.number, row.status) in [
        (len(facts["rounds"]) + 1, status) for status in ("applied", "partial")
    ]
    submitted = SiteClient().post(
        "/api/v1/jobs/",
        {"name": "after", "command": ["python", "x.py"], "kind": "digits", "steps": 5},
        content_type="application/json",
        headers=bearer(facts["tokens"]["ada"]),
    )
    assert submitted.status_code == 201
    a_round(cluster)
    assert Job.objects.get(name="after").state in ("queued", "starting")
