"""A study's run and a cluster's history printed as SWF logs, and snapshots dumped and solved."""

import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.simulation.study.study import Study, run_study
from controlplane.simulation.workloads import Workload, load
from controlplane.studies.history_log import history_records
from jobs.models import Job
from policies.__main__ import main
from tests.builders import a_cluster, a_job, a_node, a_team, a_user

CLUSTER = {"nodes": [{"name": "n", "gpus": 0, "cores": 4, "power_w": [0]}], "round_s": 1e9}
LOG = "".join(
    f"{i} {i} 0 {10 * i} 2 -1 -1 2 {20 * i} -1 1 {i % 2} 1 -1 2 -1 -1 -1\n" for i in range(1, 6)
)
STUDY = {
    "name": "Five jobs",
    "cluster": CLUSTER,
    "workload": {"type": "swf", "text": LOG, "gpus": "batch"},
    "policies": [
        {"name": "backfilling"},
        {"name": "backfilling", "parameters": {"backfill": "none"}, "label": "fifo"},
    ],
}


def printed(*words: str) -> str:
    out = StringIO()
    call_command("swf", *words, stdout=out)
    return out.getvalue()


def read(text: str) -> Workload:
    return load({"type": "swf", "text": text, "gpus": "batch_fields"}, 1)


def test_a_studys_run_is_printed_as_a_log_that_reads_back_the_same(tmp_path: Path) -> None:
    run_study(Study.of(STUDY), tmp_path, processes=0)
    text = printed(str(tmp_path), "--policy", "fifo")
    assert "; Note: Five jobs, fifo, seed 1\n" in text
    numbers = read(text).jobs.columns.numbers
    assert numbers["remaining_steps"].tolist() == [10_000.0 * i for i in range(1, 6)]
    assert numbers["walltime_s"].tolist() == [20.0 * i for i in range(1, 6)]
    assert [line.split()[2] for line in text.splitlines() if line[0] != ";"] == (
        ["0", "0", "8", "18", "36"]
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "give a study's folder, or --cluster"),
        (("nowhere",), "is no study's folder"),
        (("FOLDER", "--seed", "7"), "the study has no such run"),
    ],
)
def test_what_cannot_be_printed_is_refused(
    tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    run_study(Study.of(STUDY), tmp_path, processes=0)
    with pytest.raises(CommandError, match=problem):
        printed(*(str(tmp_path) if word == "FOLDER" else word for word in words))


def ended_job(**fields: Any) -> Job:
    job = a_job(state="completed", batch=True, gpus_min=0, gpus_max=0, **fields)
    now = datetime.now(UTC)
    times = {"submitted_at": now, "started_at": now + timedelta(seconds=5)}
    Job.objects.filter(pk=job.pk).update(**times, completed_at=now + timedelta(seconds=17.5))
    return job


@pytest.mark.django_db
def test_a_clusters_history_is_printed_as_a_log() -> None:
    cluster = a_cluster(name="lab")
    a_node(cluster)
    ended_job(cluster=cluster, units=3, cores=2.0, memory_gb=4.0, walltime_s=60.0)
    a_job(cluster)
    workload = read(printed("--cluster", "lab"))
    (job,) = workload.jobs
    assert (job.units, job.cores, job.walltime_s, job.gpus_min) == (3, 2.0, 60.0, 0)
    assert job.remaining_steps == 12_500.0
    assert workload.facts["wait_in_the_log_s"]["mean"] == 5.0


@pytest.mark.django_db
def test_a_history_has_only_jobs_that_the_user_may_see() -> None:
    cluster, own, other = a_cluster(), a_team("own"), a_team("other")
    ended_job(cluster=cluster, team=own)
    stranger = a_user("stranger", team=other)
    member = a_user("member", team=own)
    assert len(history_records(member, cluster, 1.0)) == 1
    assert history_records(stranger, cluster, 1.0) == []


def test_dumped_snapshots_are_solved_alone_to_the_same_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_study(Study.of(STUDY), tmp_path, processes=2, dump_every=2)
    folders = sorted((tmp_path / "snapshots").iterdir())
    assert len(folders) == 2
    paths = sorted(folders[0].glob("*.json"))
    assert [path.stem for path in paths][:2] == ["0000002", "0000004"]
    output = tmp_path / "plan.json"
    words = ["solve", "--policy", "backfilling", "--snapshot", str(paths[0])]
    assert main([*words, "--output", str(output)]) == 0
    solved = json.loads(output.read_text())
    assert solved["policy"] == "backfilling"
    assert solved["cpu_s"] >= 0.0
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == solved["plan"]


def test_dumping_changes_no_result(tmp_path: Path) -> None:
    for name, every in (("plain", 0), ("dumped", 1)):
        run_study(Study.of(STUDY), tmp_path / name, processes=0, dump_every=every)
    plain, dumped = (tmp_path / n / "results.json" for n in ("plain", "dumped"))
    assert plain.read_bytes() == dumped.read_bytes()
