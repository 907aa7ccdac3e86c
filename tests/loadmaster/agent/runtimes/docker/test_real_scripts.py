"""Batch scripts in containers by a real Engine: programs, output files, signals and failures."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadmaster.agent.runtimes.base import Limits, StopBy, Warned
from loadmaster.agent.runtimes.mounts import AllowedMount
from loadmaster.protocol import ReasonClass
from tests.builders_docker import (
    BASE,
    Site,
    a_docker_spec,
    an_image,
    an_image_without_python,
    busybox,
    remove_image,
)

pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]

OF_SERVER = {
    "SLURM_JOB_ID": "700",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_USER": "ada",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_CPUS_ON_NODE": "4",
    "SLURMD_NODENAME": "n1",
}
"""Variables that the server gives to a script."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)
    site = Site(tmp_path / "state", mounts=(AllowedMount(data, writable=True),))
    yield site
    site.clear()


@pytest.fixture(scope="module")
def without_python() -> Iterator[str]:
    name = an_image_without_python()
    yield name
    remove_image(name)


def a_script(*lines: str, shell: str = "/bin/sh", **changes: Any) -> Any:
    """A launch of a script of these lines."""
    text = "\n".join([f"#!{shell}", *lines, ""])
    given: dict[str, Any] = {"script": text, "command": (), "environment": OF_SERVER}
    return a_docker_spec(**{**given, **changes})


@pytest.mark.parametrize("image", ["python", "sh"])
def test_a_script_runs_with_its_arguments_in_the_image(
    site: Site, without_python: str, image: str
) -> None:
    name = BASE if image == "python" else without_python
    lines = ('echo "$0" "$@" $SLURM_JOB_ID', "exit 3")
    run = site.launch(a_script(*lines, image=name, command=("a b", "c")))
    assert site.end(run).exit_code == 3
    assert site.output(run) == "/loadmaster/bin/slurm_script a b c 700\n"


@pytest.mark.parametrize("image", ["python", "sh"])
def test_a_single_task_runs_by_srun_in_the_image(
    site: Site, without_python: str, image: str
) -> None:
    name = BASE if image == "python" else without_python
    line = f"srun -n1 --container-image={name} --mpi=pmix sh -c 'echo step $SLURM_STEP_ID; exit 5'"
    run = site.launch(a_script(line, image=name))
    assert site.end(run).exit_code == 5
    assert site.output(run) == "step 0\n"


def test_several_tasks_run_by_srun_where_the_image_has_python(site: Site) -> None:
    run = site.launch(a_script("srun -n3 sh -c 'echo $SLURM_PROCID' | sort"))
    assert site.end(run).exit_code == 0
    assert site.output(run) == "0\n1\n2\n"


def test_several_tasks_without_python_in_the_image_say_so(site: Site, without_python: str) -> None:
    run = site.launch(a_script("srun -n3 echo no", image=without_python))
    assert site.end(run).exit_code == 1
    assert "Python 3.10" in site.output(run, "stderr")


def test_scontrol_lists_the_nodes_of_a_job_in_the_image(site: Site) -> None:
    run = site.launch(a_script("scontrol show hostnames"))
    assert site.end(run).exit_code == 0
    assert site.output(run) == "n1\nn2\n"


def test_srun_refuses_another_image_than_the_jobs(site: Site) -> None:
    run = site.launch(a_script("srun --container-image=other:1 true"))
    assert site.end(run).exit_code == 1
    assert "other:1 is not the job's image" in site.output(run, "stderr")


@pytest.mark.parametrize("image", ["python", "sh"])
def test_output_goes_to_files_of_a_mounted_folder_and_to_the_log(
    site: Site, without_python: str, image: str
) -> None:
    name = BASE if image == "python" else without_python
    data = site.state_dir.parent / "data"
    spec = a_script(
        "echo out; echo err >&2",
        image=name,
        mounts=(f"{data}:/data",),
        folder="/data",
        output="o.txt",
        error_output="/data/e.txt",
    )
    run = site.launch(spec)
    assert site.end(run).exit_code == 0
    assert (data / "o.txt").read_text() == site.output(run) == "out\n"
    assert (data / "e.txt").read_text() == site.output(run, "stderr") == "err\n"


def test_an_image_without_the_scripts_interpreter_is_named(site: Site, without_python: str) -> None:
    run = site.prepare(a_script("true", shell="/bin/bash", image=without_python))
    ended = site.end(run)
    assert (ended.started, ended.blame) == (False, ReasonClass.USER)
    assert "has no /bin/bash, which the script's first line names" in ended.error


def test_an_image_without_any_shell_is_named(site: Site) -> None:
    name = an_image({"bin/busybox": busybox()})
    try:
        ended = site.end(site.prepare(a_script("true", image=name)))
        assert "has no /bin/sh" in ended.error
    finally:
        remove_image(name)


@pytest.mark.parametrize("shell", ["/bin/bash", "/usr/bin/env bash", "/usr/bin/env -S bash -e"])
def test_interpreters_of_the_image_run_scripts(site: Site, shell: str) -> None:
    run = site.launch(a_script("echo ${BASH_VERSION:+bash}", shell=shell))
    assert site.end(run).exit_code == 0
    assert site.output(run) == "bash\n"


@pytest.mark.parametrize("image", ["python", "sh"])
def test_steps_get_the_signal_before_the_walltime(
    site: Site, without_python: str, image: str
) -> None:
    name = BASE if image == "python" else without_python
    step = "sh -c 'trap \"echo step; exit\" USR1; echo up; while :; do sleep 0.1; done'"
    lines = ("trap 'echo script' USR1", f"srun -n1 {step}", "echo after")
    limits = Limits(walltime_s=8.0, signal=Warned(10, 4.0, "steps"))
    run = site.launch(a_script(*lines, image=name), limits=limits)
    ended = site.end(run)
    assert (site.output(run), ended.stopped_by) == ("up\nstep\nafter\n", None)


def test_a_script_ends_at_its_walltime(site: Site) -> None:
    run = site.launch(a_script("echo up; sleep 60"), limits=Limits(walltime_s=2.0))
    ended = site.end(run)
    assert (ended.stopped_by, site.output(run)) == (StopBy.WALLTIME, "up\n")


def test_programs_run_by_the_jobs_user_who_alone_reads_the_access(tmp_path: Path) -> None:
    site = Site(tmp_path / "state")
    site.runtime.close()
    site.runtime = site.another(server={"url": "http://127.0.0.1:9", "ca": "", "insecure": False})
    try:
        token = a_script("ls -l $LOADMASTER_PROGRAMS/server.json", script_token="secret-token")
        run = site.launch(token)
        assert site.end(run).exit_code == 0
        assert site.output(run).startswith("-rw------- 1 1000 1000")
        environment = site.inspect(run)["Config"]["Env"]
        assert "secret-token" not in str(environment)
    finally:
        site.clear()
