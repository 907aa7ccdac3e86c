"""`loadmaster submit --sbatch`: a script, sbatch's options, and the script's own words."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer

from clusters.models import Node
from jobs.models import Job, JobArray
from loadmaster.features import BATCH
from loadmaster.slurm.script_bytes import bytes_of
from tests.builders import a_cluster, a_node, a_team, a_user
from tests.builders_cli import run
from tests.builders_jobs import a_token


@pytest.fixture
def node(transactional_db: None) -> Node:
    return a_node(a_cluster(name="lab"), name="volta", gpus=0, cores=8)


@pytest.fixture(autouse=True)
def folder(
    node: Node, live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    user: User = a_user("ada", team=a_team("research"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "250")
    for name, value in {"URL": live_server.url, "TOKEN": a_token(user)}.items():
        monkeypatch.setenv(f"LOADMASTER_{name}", value)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def script(*lines: str) -> Path:
    path = Path("run.sh")
    path.write_text("\n".join(["#!/bin/sh", *(f"#SBATCH {line}" for line in lines), "true\n"]))
    return path


def submitted(*words: object) -> Job:
    done = run("submit", "--sbatch", *words)
    assert done.exit_code == 0, done.output
    job = Job.objects.order_by("-submitted_at").first()
    assert job is not None
    return job


def test_options_stand_behind_the_script_and_its_own_words_behind_them(folder: Path) -> None:
    job = submitted(script("-J mine"), "-n", 2, "--time=10", "one", "--json", "-n")
    assert (job.name, job.units, job.walltime_s) == ("mine", 2, 600.0)
    assert job.command == ["one", "--json", "-n"]
    assert (job.folder, job.output) == (str(folder), "slurm-%j.out")


def test_our_own_options_stand_before(folder: Path) -> None:
    script()
    done = run("submit", "--json", "--set", "priority=3", "--sbatch=run.sh", "-n2")
    answer: dict[str, Any] = json.loads(done.stdout)
    job = Job.objects.get(pk=answer["id"])
    assert (job.priority, job.units) == (3, 2)


def test_a_number_is_printed_and_names_the_job_everywhere(folder: Path) -> None:
    done = run("submit", "--sbatch", script("-J mine"))
    job = Job.objects.get()
    number = str(job.number)
    assert done.stdout == f"{number}\n"
    assert str(job.pk) in run("show", number).stdout
    waiting = submitted("run.sh", "-d", f"afterok:{number}")
    assert [link.on_id for link in waiting.dependency_links.all()] == [job.pk]
    assert run("cancel", number).exit_code == 0
    job.refresh_from_db()
    assert job.state == "cancelled"


def test_the_number_of_an_array_names_it_and_its_elements(folder: Path) -> None:
    done = run("submit", "--sbatch", script("-a 0-2"))
    array = JobArray.objects.get()
    number = str(array.number)
    assert done.stdout == f"{number}\n"
    assert run("cancel", f"{number}_1").exit_code == 0
    assert list(array.jobs.filter(state="cancelled").values_list("array_index", flat=True)) == [1]
    assert run("cancel", number).exit_code == 0
    assert array.jobs.filter(state="cancelled").count() == 3


def test_exported_variables_are_sent_and_no_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "1")
    monkeypatch.setenv("OTHER", "2")
    assert not {"MINE", "OTHER"} & submitted(script()).environment.keys()
    some = submitted(script("--export=MINE")).environment
    assert (some["MINE"], "OTHER" in some) == ("1", False)
    every = submitted("run.sh", "--export=ALL").environment
    assert (every["OTHER"], "LOADMASTER_TOKEN" in every) == ("2", False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sbatch", "none.sh"], "none.sh: No such file or directory"),
        (["--sbatch", "run.sh", "--foo"], "command line: sbatch has no option --foo; remove it"),
        (["--sbatch", "run.sh", "-n", "x"], "command line: --ntasks: 'x' is no number"),
        ([], "name a job file, or a script by --sbatch"),
        (["run.sh", "--sbatch", "run.sh"], "name a job file, or a script by --sbatch"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, words: list[str], said: str) -> None:
    script()
    done = run("submit", *words)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_every_wrong_line_of_a_script_is_named(folder: Path) -> None:
    done = run("submit", "--sbatch", script("--foo", "-n 2", "--bar"))
    said = " ".join(done.output.split())
    assert "line 2: sbatch has no option --foo" in said
    assert "line 4: sbatch has no option --bar" in said


def test_a_program_that_is_no_script_is_refused(folder: Path) -> None:
    Path("run.sh").write_bytes(b"\x7fELF\xff\xfe")
    done = run("submit", "--sbatch", "run.sh")
    assert (done.exit_code, "a script begins with #!" in done.output) == (2, True)


def test_a_script_in_latin_1_keeps_its_bytes(folder: Path) -> None:
    text = "#!/bin/sh\n#SBATCH -J x\n# café\n".encode("latin-1")
    Path("run.sh").write_bytes(text)
    assert bytes_of(submitted("run.sh").script) == text


def test_options_may_stand_before_the_script_as_sbatch_has_them(folder: Path) -> None:
    script("-J mine")
    job = submitted("-n", 2, "--time=10", "run.sh", "one", "-n")
    assert (job.name, job.units, job.walltime_s, job.command) == ("mine", 2, 600.0, ["one", "-n"])


@pytest.mark.parametrize("words", [["-"], ["-n2"], ["-", "-n2"], []])
def test_a_script_is_read_from_standard_input(folder: Path, words: list[str]) -> None:
    done = run("submit", "--sbatch", *words, stdin="#!/bin/sh\n#SBATCH -t 5\necho\n")
    assert done.exit_code == 0, done.output
    job = Job.objects.get()
    assert (job.name, job.script) == ("sbatch", "#!/bin/sh\n#SBATCH -t 5\necho\n")
    assert (job.walltime_s, job.units) == (300.0, 2 if "-n2" in words else 1)


@pytest.mark.parametrize("command", ["hostname -s | sort", ""])
def test_a_wrapped_command_becomes_a_script(folder: Path, command: str) -> None:
    job = submitted(f"--wrap={command}", "-n", 2)
    assert (job.name, job.units, job.command) == ("wrap", 2, [])
    assert job.script.startswith("#!/bin/sh\n")
    assert job.script.endswith(f"\n{command}\n")


def test_a_wrapped_command_goes_without_a_script(folder: Path) -> None:
    script()
    done = run("submit", "--sbatch", "--wrap=true", "run.sh")
    assert (done.exit_code, "--wrap: goes without a script" in done.output) == (2, True)


@pytest.mark.parametrize("lines", [["--test-only"], []])
def test_a_test_answers_with_the_forecast_and_submits_nothing(
    folder: Path, lines: list[str]
) -> None:
    Node.objects.update(features=["process", BATCH])
    words = [] if lines else ["--test-only"]
    done = run("submit", "--sbatch", script(*lines, "-n 2"), *words)
    assert done.exit_code == 0, done.output
    assert "It would start now on volta, with 2 cores." in done.stdout
    assert "Run time: unknown without a walltime." in done.stdout
    assert Job.objects.count() == 0
    assert run("submit", "--sbatch", "run.sh", "--test-only", "-c", "99").exit_code == 2
