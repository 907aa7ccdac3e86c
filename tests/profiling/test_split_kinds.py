"""The migration by which each kind is one team's."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from tests.builders_databases import postgres_database, sqlite_database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BEFORE = [("jobs", "0013_roles_of_members"), ("profiling", "0003_run_times_of_batch_jobs")]
AFTER = [("profiling", "0005_split_kinds_by_team")]


def migrate(targets: list[tuple[str, str]]) -> Any:
    """Bring the default database there; the models of that time, by name."""
    executor = MigrationExecutor(connections["default"])
    apps = executor.migrate(targets).apps
    names = ("jobs.Job", "jobs.Kind", "jobs.Team", "jobs.Assignment", "auth.User",
             "clusters.Cluster", "clusters.Node", "clusters.GpuType", "profiling.Profile",
             "profiling.Measurement", "profiling.ProfileRun", "profiling.PairProfile")  # fmt: skip
    return {name.split(".")[1]: apps.get_model(name).objects for name in names}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def old(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[Any]:
    """Models of a database in which kinds named alike are one across teams."""
    with django_db_blocker.unblock():
        there: AbstractContextManager[str] = (
            sqlite_database(tmp_path / "db.sqlite3")
            if request.param == "sqlite"
            else postgres_database()
        )
        with there:
            yield migrate(BEFORE)


class House:
    """A cluster with a node, and teams whose jobs are of kinds."""

    def __init__(self, models: Any) -> None:
        self.models = models
        self.cluster = models["Cluster"].create(name="lab")
        self.types = {
            name: models["GpuType"].create(
                name=name, tflops=10.0, memory_gb=16.0, idle_w=10.0, peak_w=100.0
            )
            for name in ("V100", "T4")
        }
        self.node = models["Node"].create(
            cluster=self.cluster, name="n", gpu_type=self.types["V100"], cores=8.0,
            memory_gb=64.0, machine_id="n", token_sha256="0" * 64,
        )  # fmt: skip
        self.user = models["User"].create(username="ada")
        self.teams = {name: models["Team"].create(name=name) for name in ("vision", "language")}

    def kind(self, name: str, **speeds: float) -> Any:
        kind = self.models["Kind"].create(digest=name.ljust(64, "0"), name=name, setup_s=3.0)
        for gpu_type, speed in speeds.items():
            self.models["Profile"].create(
                kind=kind, gpu_type=self.types[gpu_type], gpus=1, steps_per_s=speed,
                source="measured", samples=4,
            )  # fmt: skip
        return kind

    def job(self, team: str, kind: Any, *, measured: float | None = None) -> Any:
        """A job of the kind, with a measurement on a V100 if one is given."""
        job = self.models["Job"].create(
            name=f"{team}'s", cluster=self.cluster, team=self.teams[team], user=self.user,
            kind=kind, total_steps=9,
        )  # fmt: skip
        if measured is not None:
            launch = self.models["Assignment"].create(job=job, node=self.node, gpus=1, fence=1)
            self.models["Measurement"].create(
                kind=kind, gpu_type=self.types["V100"], gpus=1, assignment=launch,
                purpose="training", steps=9, steps_per_s=measured, at=timezone.now(),
            )  # fmt: skip
        return job


def test_each_kind_becomes_its_teams_and_what_a_team_has_not_measured_an_estimate(old: Any) -> None:
    house = House(old)
    common, own = house.kind("common", V100=7.0, T4=3.0), house.kind("own", V100=5.0)
    unused = house.kind("unused", V100=1.0)
    shared_unmeasured = house.kind("guessed", V100=2.0)
    first = [house.job("vision", common, measured=9.7) for _ in range(2)]
    other = house.job("language", common)
    house.job("vision", own, measured=5.5)
    house.job("language", shared_unmeasured, measured=2.5)
    house.job("vision", shared_unmeasured, measured=900.0)
    house.models["ProfileRun"].create(
        kind=common, job=other, gpu_type=house.types["T4"], gpus=1, steps=5, copy=1
    )
    house.models["PairProfile"].create(
        first=common, second=own, gpu_type=house.types["V100"], first_steps_per_s=1.0,
        second_steps_per_s=1.0, source="measured",
    )  # fmt: skip

    new = migrate(AFTER)
    assert not new["Kind"].filter(pk=unused.pk).exists()
    jobs = list(new["Job"].select_related("kind"))
    assert [job.pk for job in jobs if job.kind.team_id != job.team_id] == []
    kept = new["Kind"].get(pk=common.pk)
    assert {job.kind_id for job in jobs if job.pk in {j.pk for j in first}} == {kept.pk}
    copy = new["Job"].get(pk=other.pk).kind
    assert (copy.digest, copy.name, copy.setup_s) == (common.digest, "common", 3.0)
    assert new["ProfileRun"].get().kind_id == copy.pk
    assert not new["PairProfile"].exists()
    assert numbers(new, kept) == {"V100": (9.7, "measured"), "T4": (3.0, "estimated")}
    assert numbers(new, copy) == {"V100": (7.0, "estimated"), "T4": (3.0, "estimated")}
    assert numbers(new, own) == {"V100": (5.0, "measured")}
    speeds = {
        kind.team.name: numbers(new, kind)["V100"] for kind in new["Kind"].filter(name="guessed")
    }
    assert speeds == {"language": (2.5, "measured"), "vision": (900.0, "measured")}
    measured = new["Measurement"].select_related("assignment__job")
    assert all(m.kind_id == m.assignment.job.kind_id for m in measured)


def numbers(models: Any, kind: Any) -> dict[str, tuple[float, str]]:
    """(steps/s, source) of a kind by GPU type."""
    rows = models["Profile"].filter(kind=kind.pk).select_related("gpu_type")
    return {row.gpu_type.name: (row.steps_per_s, row.source) for row in rows}
