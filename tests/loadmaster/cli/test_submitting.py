"""Jobs submitted by the command line: files, settings over them, and what is refused."""

import json
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from clusters.models import Node
from jobs.lifecycle import JobState
from jobs.models import Assignment, Job, Secret
from tests.builders_cli import job_file, run
from tests.builders_jobs import a_placement


def test_a_job_is_submitted_from_a_file_with_settings_over_it(
    ada: User, node: Node, tmp_path: Path
) -> None:
    path = job_file(tmp_path, environment={"A": "1"})
    done = run(
        "submit", path, "--set", "gpus=1..2", "--set", "environment.SEED=7", "--set", "name=other"
    )
    assert done.exit_code == 0, done.output
    job = Job.objects.get(pk=done.stdout.strip())
    assert (job.name, job.gpus_max, job.environment) == ("other", 2, {"A": "1", "SEED": "7"})


def test_several_files_are_submitted_in_one_call_and_the_refused_named(
    ada: User, node: Node, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder in folders:
        folder.mkdir()
    paths = [
        job_file(folders[0], name="first"),
        job_file(folders[1], gpu=1),
        job_file(folders[2], name="third"),
    ]
    done = run("submit", *paths, "--set", "priority=3", "--key", "k")
    assert done.exit_code == 2
    assert "b/job.yaml: gpu: is no field of a job" in done.stderr.replace("\n", "")
    assert sorted(Job.objects.values_list("name", "priority")) == [("first", 3), ("third", 3)]
    assert {str(pk) for pk in Job.objects.values_list("pk", flat=True)} == set(done.stdout.split())
    rows = json.loads(
        run("submit", paths[0], paths[2], "--set", "priority=3", "--key", "k", "--json").stdout
    )
    assert [(row["created"], row["error"]) for row in rows] == [(False, None), (True, None)]


def test_several_files_are_not_watched(tmp_path: Path) -> None:
    done = run("submit", job_file(tmp_path), job_file(tmp_path), "--watch")
    assert done.exit_code == 2
    assert "follows one job" in done.stderr


def test_a_refused_job_exits_2_naming_every_field(ada: User, node: Node, tmp_path: Path) -> None:
    done = run("submit", job_file(tmp_path, gpu=1, steps=-1))
    assert done.exit_code == 2
    assert "gpu: is no field of a job; did you mean gpus?" in done.stderr
    assert "steps: must be from 1" in done.stderr
    assert not Job.objects.exists()


def test_warnings_are_said_and_the_job_goes_in(ada: User, node: Node, tmp_path: Path) -> None:
    done = run("submit", job_file(tmp_path, gpus="1..8"))
    assert done.exit_code == 0
    assert "Warning: gpus: at most 2 of 8" in done.stderr
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is no YAML"),
        ("- a", "must hold fields"),
        ("name: a\nname: b", "given twice"),
        ("", "must hold"),
        ("a: *x", "is no YAML"),
        ("a: 2026-02-30", "is no YAML that can be used"),
    ],
)
def test_a_file_that_is_no_job_exits_2(ada: User, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    done = run("submit", path)
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_file_that_is_not_there_exits_2(ada: User, tmp_path: Path) -> None:
    assert "cannot be read" in run("submit", tmp_path / "none.yaml").stderr
    done = run("submit", job_file(tmp_path), "--set", "nonsense")
    assert (done.exit_code, "write name=value" in done.stderr) == (2, True)


def test_a_time_in_yaml_reaches_the_server(ada: User, node: Node, tmp_path: Path) -> None:
    path = job_file(tmp_path)
    path.write_text(path.read_text() + "due: 2030-01-01T10:00:00Z\n")
    job = Job.objects.get(pk=run("submit", path).stdout.strip())
    assert job.due_at is not None
    assert job.due_at.year == 2030


def test_the_same_key_is_submitted_once(ada: User, node: Node, tmp_path: Path) -> None:
    path = job_file(tmp_path)
    first, again = (run("submit", path, "--key", "k") for _ in range(2))
    assert first.stdout == again.stdout
    assert "had been submitted before" in again.stderr


def test_watching_ends_with_the_job_and_tells_how(
    ada: User, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter([JobState.FAILED, JobState.COMPLETED])
    monkeypatch.setattr(
        "loadmaster.cli.jobs.time.sleep", lambda s: Job.objects.update(state=next(states))
    )
    failed = run("submit", job_file(tmp_path), "--watch")
    assert (failed.exit_code, "failed" in failed.stderr) == (1, True)
    Job.objects.all().delete()
    assert run("submit", job_file(tmp_path), "--watch").exit_code == 0


def test_a_job_of_several_units_is_submitted_and_shown(
    ada: User, node: Node, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: wide\ncommand: run.sh\nunits: 3\nprocesses: each\n")
    assert run("submit", str(path)).exit_code == 0
    job = Job.objects.get(name="wide")
    assert (job.units, job.processes) == (3, "each")
    held = a_placement(job, node)
    Assignment.objects.filter(pk=held.pk).update(units=2, gpus=0)
    assert "2 units, no GPUs" in run("show", str(job.pk)).stdout


@pytest.mark.parametrize(
    "example", sorted((Path(__file__).parents[3] / "examples").glob("*.yaml")), ids=lambda p: p.name
)
def test_every_example_is_a_job(ada: User, node: Node, example: Path) -> None:
    Secret.objects.create(team=ada.teams.get(), name="hub-token", ciphertext=b"x")
    assert run("submit", example).exit_code == 0, run("submit", example).output
