"""Variables and names of files that scripts for Slurm see of a launch."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.execution.services.assignments import launch_spec
from controlplane.execution.slurm import file_name, repeated
from jobs.models import JobArray
from loadmaster.features import BATCH, CONTAINER_SCRIPTS
from tests.builders import a_cluster, a_job
from tests.builders_agents import a_node_with_agent, an_offer


@given(st.lists(st.integers(1, 9), min_size=1))
def test_amounts_by_node_are_written_by_runs(amounts: list[int]) -> None:
    found = list[int]()
    for part in repeated(amounts).split(","):
        amount, _, times = part.partition("(x")
        found += [int(amount)] * int(times.rstrip(")") or 1)
    assert found == amounts


@pytest.mark.django_db
def test_a_script_gets_its_variables_text_and_files() -> None:
    node = a_node_with_agent(a_cluster(name="lab"), name="n1")
    values: dict[str, Any] = {"script": "#!/bin/sh\n", "folder": "/tmp", "output": "%x-%j-%N.txt"}
    job = a_job(node.cluster, name="mine", batch=True, cores=2.0, command=["x"], **values)
    spec = launch_spec(an_offer(node, job, gpus=0))
    number = str(job.number)
    assert (spec.script, spec.folder, spec.command) == ("#!/bin/sh\n", "/tmp", ("x",))
    assert spec.output == f"mine-{number}-n1.txt"
    assert BATCH in spec.required_features
    wanted = {
        "SLURM_JOB_ID": number, "SLURM_JOBID": number, "SLURM_JOB_NAME": "mine",
        "SLURM_JOB_NODELIST": "n1", "SLURM_NNODES": "1", "SLURM_CPUS_ON_NODE": "2",
        "SLURM_JOB_CPUS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "1", "SLURM_CLUSTER_NAME": "lab",
        "SLURMD_NODENAME": "n1", "SLURM_PROCID": "0",
    }  # fmt: skip
    assert spec.environment.items() >= wanted.items()
    assert "SLURM_ARRAY_JOB_ID" not in spec.environment


@pytest.mark.django_db
@pytest.mark.parametrize(("runtime", "is_needed"), [("docker", True), ("process", False)])
def test_a_script_in_an_image_needs_an_agent_that_knows_them(runtime: str, is_needed: bool) -> None:
    node = a_node_with_agent(a_cluster())
    job = a_job(node.cluster, runtime=runtime, batch=True, script="#!/bin/sh\n")
    spec = launch_spec(an_offer(node, job, gpus=0))
    assert (CONTAINER_SCRIPTS in spec.required_features) == is_needed


@pytest.mark.django_db
def test_other_jobs_get_no_variables_of_slurm() -> None:
    node = a_node_with_agent(a_cluster())
    spec = launch_spec(an_offer(node, a_job(node.cluster)))
    assert not any(name.startswith("SLURM") for name in spec.environment)
    assert (spec.script, spec.output) == ("", "")


@pytest.mark.django_db
def test_an_element_sees_its_array() -> None:
    node = a_node_with_agent(a_cluster())
    array = JobArray.objects.create(indices="1-5:2", size=3, lowest=1, highest=5, step=2)
    values: dict[str, Any] = {"script": "#!/bin/sh\n", "output": "%A_%a-%4a.txt", "batch": True}
    job = a_job(node.cluster, array=array, array_index=3, **values)
    spec = launch_spec(an_offer(node, job, gpus=0))
    number = str(array.number)
    assert spec.output == f"{number}_3-0003.txt"
    wanted = {"JOB_ID": number, "TASK_ID": "3", "TASK_COUNT": "3", "TASK_MIN": "1", "TASK_MAX": "5",
              "TASK_STEP": "2"}  # fmt: skip
    assert spec.environment.items() >= {f"SLURM_ARRAY_{n}": v for n, v in wanted.items()}.items()


@pytest.mark.django_db
def test_a_file_outside_of_an_array_has_slurms_number_for_no_index() -> None:
    job = a_job(a_cluster(), name="x")
    number = job.number
    assert file_name("%A_%a-100%%-%q", job, "n1") == f"{number}_4294967294-100%-%q"
