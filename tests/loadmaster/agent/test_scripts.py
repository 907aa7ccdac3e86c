"""Batch scripts at the agent: they run in their folder, and their output is where they say."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.models import Assignment
from loadmaster.protocol import AssignmentState
from tests.builders import a_job
from tests.builders_agent import until
from tests.builders_agent_site import NodeSite, a_site_cluster, is_state
from tests.builders_agents import an_offer
from tests.builders_jobs import kept_output

pytestmark = pytest.mark.django_db

SCRIPT = '#!/bin/sh\npwd\nprintf "%s|" "$@"\necho "$SLURM_JOB_NAME" >&2\nexit 3\n'


@pytest.fixture
def site(tmp_path: Path) -> Iterator[NodeSite]:
    site = NodeSite(a_site_cluster(), tmp_path / "node")
    yield site
    site.leave()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def ended(site: NodeSite, script: str = SCRIPT, **values: Any) -> Assignment:
    """The launch of a script, at its end and with its output shipped."""
    fields = {"command": [], "batch": True, "max_retries": 0, **values}
    launch = an_offer(site.node, a_job(site.cluster, name="mine", script=script, **fields), gpus=0)
    over = (AssignmentState.FAILED, AssignmentState.SUCCEEDED, AssignmentState.REJECTED)
    until(lambda: any(is_state(launch, state) for state in over), site.agent)
    until(lambda: site.agent.is_idle, site.agent)
    return launch


def log(launch: Assignment, stream: str = "stdout") -> str:
    return kept_output(launch, stream).decode()


def test_a_script_runs_in_its_folder_with_its_arguments_and_writes_to_its_file_and_the_log(
    site: NodeSite, folder: Path
) -> None:
    launch = ended(site, command=["a b", "-n"], folder=str(folder), output="%x.txt")
    written = (folder / "mine.txt").read_text()
    assert (launch.state, launch.exit_code) == (AssignmentState.FAILED, 3)
    assert written == f"{folder}\na b|-n|mine\n"
    assert (log(launch), log(launch, "stderr")) == (written, "")


def test_errors_have_a_file_of_their_own_where_one_is_named(site: NodeSite, folder: Path) -> None:
    launch = ended(site, folder=str(folder), output="out", error_output="err")
    assert (folder / "out").read_text() == f"{folder}\n|"
    assert (folder / "err").read_text() == "mine\n"
    assert (log(launch), log(launch, "stderr")) == (f"{folder}\n|", "mine\n")


def test_one_file_for_both_is_shipped_once(site: NodeSite, folder: Path) -> None:
    launch = ended(site, folder=str(folder), output="all", error_output=f"{folder}/all")
    assert log(launch) == (folder / "all").read_text() == f"{folder}\n|mine\n"
    assert log(launch, "stderr") == ""


def test_a_script_without_folder_and_files_runs_in_its_own_and_has_a_log(site: NodeSite) -> None:
    launch = ended(site)
    assert log(launch).splitlines()[0].endswith("/work")
    assert log(launch, "stderr") == "mine\n"


def test_a_file_is_emptied_first(site: NodeSite, folder: Path) -> None:
    (folder / "out").write_text("of an earlier run\n" * 100)
    ended(site, folder=str(folder), output="out")
    assert (folder / "out").read_text() == f"{folder}\n|mine\n"


def test_a_script_is_private_and_gone_with_its_run(site: NodeSite, folder: Path) -> None:
    launch = ended(site, '#!/bin/sh\nstat -c %a "$0"; echo "$0"\n', folder=str(folder))
    mode, path = log(launch).splitlines()
    assert mode == "700"
    assert Path(path).name == "slurm_script"
    assert not Path(path).exists()


def test_the_interpreter_of_the_first_line_runs_it(site: NodeSite) -> None:
    launch = ended(site, "#!/usr/bin/env python3\nprint(sum(range(5)))\n")
    assert (launch.exit_code, log(launch)) == (0, "10\n")


@pytest.mark.parametrize("folder", ["/no/such/folder", "/" + "n" * 300])
def test_a_node_without_the_folder_refuses_the_script_and_says_so(
    site: NodeSite, folder: str
) -> None:
    launch = ended(site, folder=folder)
    launch.job.refresh_from_db()
    assert (launch.state, launch.job.state) == (AssignmentState.REJECTED, "failed")
    assert f"the folder {folder} does not exist on this node" in launch.job.failure_reason


@pytest.mark.parametrize("output", ["missing/out", "pipe"])
def test_a_file_that_cannot_be_opened_fails_the_script_before_it_runs(
    site: NodeSite, folder: Path, output: str
) -> None:
    os.mkfifo(folder / "pipe")
    launch = ended(site, "#!/bin/sh\ntouch ran\n", folder=str(folder), output=output)
    assert (launch.state, launch.exit_code) == (AssignmentState.FAILED, None)
    assert output in launch.reason
    assert not (folder / "ran").exists()


def test_an_interpreter_that_is_missing_fails_the_script(site: NodeSite) -> None:
    launch = ended(site, "#!/no/such/program\n")
    assert (launch.state, launch.exit_code) == (AssignmentState.FAILED, 127)
    assert "slurm_script: not found" in launch.reason


def test_a_script_sees_what_its_node_alone_knows(site: NodeSite) -> None:
    text = """#!/bin/sh
test "$SLURM_TASK_PID" = $$ && echo own process
test "$SLURM_JOB_UID:$SLURM_JOB_GID" = "$(id -u):$(id -g)" && echo own user
test "$SLURM_JOB_END_TIME" = $((SLURM_JOB_START_TIME + 90)) && echo own time
echo "$ENVIRONMENT ${SLURM_GPUS_ON_NODE-unset} ${SLURM_JOB_GPUS-unset}"
scontrol show hostnames
"""
    launch = ended(site, text, walltime_s=90.0, on_walltime="kill")
    name = site.node.name
    wanted = ["own process", "own user", "own time", "BATCH unset unset", name]
    assert log(launch).splitlines() == wanted


def test_steps_of_a_script_have_gpus_of_their_own(site: NodeSite) -> None:
    text = """#!/bin/sh
echo "job $SLURM_JOB_GPUS of $SLURM_GPUS_ON_NODE"
srun -n2 --gpus-per-task=1 sh -c 'echo "task $SLURM_PROCID: $SLURM_STEP_GPUS"' | sort
"""
    environment = {"SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "1"}
    job = a_job(site.cluster, script=text, batch=True, cores=2.0, environment=environment)
    launch = an_offer(site.node, job, gpus=2)
    until(lambda: is_state(launch, AssignmentState.SUCCEEDED), site.agent)
    until(lambda: site.agent.is_idle, site.agent)
    lines = log(launch).splitlines()
    assert lines == ["job 0,1 of 2", "task 0: 0", "task 1: 1"]


def test_output_to_a_device_leaves_an_empty_log(site: NodeSite, folder: Path) -> None:
    launch = ended(site, folder=str(folder), output="/dev/null")
    assert (launch.exit_code, log(launch), log(launch, "stderr")) == (3, "", "")


def test_a_script_runs_steps_by_srun_whatever_path_its_job_has(
    site: NodeSite, folder: Path
) -> None:
    text = "#!/bin/sh\nsrun sh -c 'echo $SLURM_STEP_ID; exit 4'\nsrun -n99 true\necho $?\n"
    given = {"PATH": "/usr/bin:/bin"}
    launch = ended(site, script=text, folder=str(folder), output="out", environment=given)
    lines = (folder / "out").read_text().splitlines()
    assert launch.state == AssignmentState.SUCCEEDED
    assert (lines[0], lines[-1]) == ("0", "1")
    assert f"srun: error: {site.node.name}: task 0: Exited with exit code 4" in lines
