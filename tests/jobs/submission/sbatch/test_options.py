"""Options of scripts for Slurm, and the fields of jobs that they become."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from clusters.models import Cluster
from jobs.services import job_clone, job_data, job_submit
from jobs.submission.validation import validate_job
from tests.builders import a_gpu_type, a_node
from tests.builders_sbatch import refused, sbatch, taken

MIB_GB = 2**20 / 1e9


def test_script_without_options_has_one_core_in_its_folder(user: User, cluster: Cluster) -> None:
    job = taken(user, arguments=["a b", "-n"]).job
    assert (job.name, job.batch, job.units, job.cores, job.gpus_min) == ("run.sh", True, 1, 1.0, 0)
    assert (job.script.splitlines()[0], job.command) == ("#!/bin/sh", ["a b", "-n"])
    assert (job.folder, job.output, job.error_output) == ("/home/ada", "slurm-%j.out", "")
    assert (job.max_retries, job.preemptible, job.walltime_s) == (0, False, None)
    assert job.environment == {"SLURM_SUBMIT_DIR": "/home/ada"}


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        (["--job-name=x y"], {"name": "x"}),
        (["--job-name='x y'"], {"name": "x y"}),
        (["-t 1:30:00"], {"walltime_s": 5400.0, "on_walltime": "kill"}),
        (["--time=0"], {"walltime_s": None}),
        (["-n4 -c 2"], {"units": 4, "cores": 2.0}),
        (["-N 2"], {"units": 2, "nodes": 2}),
        (["-N 2 --ntasks-per-node=3"], {"units": 6, "nodes": 2, "units_per_node": 3}),
        (["-N 1-2 -n 4"], {"units": 4, "nodes": 1}),
        (["--mem-per-cpu=500 -c 2"], {"memory_gb": 1000 * MIB_GB}),
        (["--mem=4G"], {"memory_gb": 4096 * MIB_GB}),
        (["--mem=4G -n 4"], {"memory_gb": 1024 * MIB_GB}),
        (["--mem=4G -N 2 -n 4"], {"memory_gb": 2048 * MIB_GB}),
        (["--mem=0"], {"exclusive": True}),
        (["--gres=gpu:2,mic:1"], {"gpus_min": 2, "gpus_max": 2, "resources": {"mic": 1.0}}),
        (["--gres=gpu:1 -N 2"], {"gpus_min": 2}),
        (["-G V100:2"], {"gpus_min": 2, "allowed_types": ["V100"]}),
        (["--exclusive"], {"exclusive": True}),
        (["-o %x.txt -e err"], {"output": "%x.txt", "error_output": "err"}),
        (["-D sub"], {"folder": "/home/ada/sub"}),
        (["-D /tmp"], {"folder": "/tmp"}),
        (["-a 0-3"], {"output": "slurm-%A_%a.out"}),
        (["--requeue"], {"preemptible": True}),
        (["--no-requeue --requeue"], {"preemptible": True}),
        (["--requeue --no-requeue"], {"preemptible": False}),
        (["-C 'a&b'"], {"labels": ["a", "b"]}),
        (["-C 'v|a'"], {"labels": ["a|v"]}),
        (["--tasks-per-node=3 -N 2"], {"units": 6, "units_per_node": 3}),
        (["-N 0"], {"units": 1, "nodes": 0}),
        (["--time=-1"], {"walltime_s": None}),
        (["--time=2-"], {"walltime_s": 172_800.0}),
        (["--time=9999-0"], {"walltime_s": None}),
        (["--array="], {"output": "slurm-%j.out", "array": None}),
        (["--dependency="], {"output": "slurm-%j.out"}),
        (["--gres=gpu:v100:1"], {"gpus_min": 1, "allowed_types": ["V100"]}),
        (["--gpus=V100"], {"gpus_min": 1, "allowed_types": ["V100"]}),
        (["--gres=gpu:2080TI:1"], {"gpus_min": 1, "allowed_types": ["2080ti"]}),
        (["--gpus=2080ti:1"], {"gpus_min": 1, "allowed_types": ["2080ti"]}),
        (["--gres=tmpspace:10G"], {"resources": {"tmpspace": 10.0}}),
        (["--gres=gpu:2,gmem:512M"], {"gpus_min": 2, "resources": {"gmem": 0.5}}),
        (["--gres=mic"], {"resources": {"mic": 1.0}}),
        # Tasks that share GPUs are one unit for each node.
        (["-n8 -c2 --gres=gpu:1"], {"units": 1, "gpus_min": 1, "cores": 16.0}),
        (["-n4 -N2 --gres=gpu:1"], {"units": 2, "nodes": 2, "gpus_min": 2, "cores": 2.0}),
        (["-n3 -G2 --mem-per-cpu=1G"], {"units": 1, "memory_gb": 3 * 1024 * MIB_GB}),
        (["-n3 -G2 --mem=3G"], {"units": 1, "memory_gb": 3 * 1024 * MIB_GB}),
        (["-n4 -G4"], {"units": 4, "gpus_min": 4, "cores": 1.0}),
        # Nodes with different numbers of GPUs: a unit is a GPU.
        (["-G3 -N2"], {"units": 3, "nodes": 2, "gpus_min": 3, "units_per_node": 0, "cores": 1.0}),
        (["-G5 -N2 -n8 -c2"], {"units": 5, "nodes": 2, "gpus_min": 5, "cores": 4.0}),
        (["-G3 -N2 --mem=4G"], {"units": 3, "memory_gb": 4096 * MIB_GB}),
        (["-n5 -N2 --ntasks-per-gpu=2"], {"units": 3, "nodes": 2, "gpus_min": 3, "cores": 2.0}),
        # Of a range as few nodes as can hold it.
        (["-G3 -N 1-2"], {"units": 1, "nodes": 1, "gpus_min": 3}),
        (["-G5 -N 1-2"], {"units": 5, "nodes": 2, "gpus_min": 5}),
        (["-n 20 -N 1-4"], {"units": 20, "nodes": 2}),
        (["-n 20 -N 1-4 --mem-per-cpu=6G"], {"units": 20, "nodes": 3}),
        # Counts that others imply.
        (["-G4 --gpus-per-task=2"], {"units": 2, "gpus_min": 4}),
        (["-G2 --ntasks-per-gpu=2"], {"units": 1, "gpus_min": 2, "cores": 4.0}),
        (["-n4 --ntasks-per-gpu=2"], {"units": 1, "gpus_min": 2, "cores": 4.0}),
        (["-G2 --cpus-per-gpu=3"], {"gpus_min": 2, "cores": 6.0}),
        (["-n2 -G2 --cpus-per-gpu=3"], {"units": 2, "cores": 3.0}),
        (["-G2 --mem-per-gpu=2G"], {"memory_gb": 4096 * MIB_GB}),
        (["--gpus-per-socket=2 --sockets-per-node=2"], {"gpus_min": 4}),
        (["-t 5 --signal=B:USR1@90"], {"signal": "B:USR1@90"}),
        (["-t 5 --signal=sigusr1"], {"signal": "USR1@60"}),
    ],
)  # fmt: skip  # a table: a case a line
def test_option_becomes_field_of_the_job(
    user: User, cluster: Cluster, lines: list[str], fields: dict[str, Any]
) -> None:
    a_gpu_type("V100")
    a_node(cluster, gpu_type=a_gpu_type("2080ti"), gpus=2, cores=8, memory_gb=64)
    if lines == ["--job-name=x y"]:
        assert "line 2: 'y' is no option" in refused(user, *lines)["sbatch"][0]
        return
    job = taken(user, *lines).job
    found = {name: getattr(job, name) for name in fields}
    assert found == {n: pytest.approx(v) if n == "memory_gb" else v for n, v in fields.items()}


def test_own_fields_hold_over_command_line_and_script(user: User, cluster: Cluster) -> None:
    data = {**sbatch("-n 2 -J script", options=["-J", "words"]), "name": "own", "priority": 3}
    job = validate_job(user, data).job
    assert (job.name, job.units, job.priority) == ("own", 2, 3)


def test_script_can_be_submitted_again_as_it_is(user: User, cluster: Cluster) -> None:
    job = job_submit(user, sbatch("-n 2 -o out.txt", arguments=["x"])).job
    again = job_clone(job, user).job
    ignored = {"name"}
    described = {n: v for n, v in job_data(job).items() if n not in ignored}
    assert described == {n: v for n, v in job_data(again).items() if n not in ignored}
    assert (again.script, again.command) == (job.script, ["x"])


def test_value_may_stand_in_the_next_line(user: User, cluster: Cluster) -> None:
    assert taken(user, "--job-name", "two -n", "2").job.name == "two"


def test_option_marks_a_submission_for_forecast_only(user: User, cluster: Cluster) -> None:
    assert taken(user, "--test-only").test_only
    assert not taken(user).test_only
