"""Scripts whose options of pyxis name an image: they become jobs with an image and mounts."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from clusters.models import Cluster
from jobs.submission.validation import JobInvalid, JobRequest, validate_job
from loadmaster.features import features_with
from tests.builders import a_cluster, a_node, a_team, a_user

IMAGE = r"--container-image=nvcr.io\#nvidia/pytorch:24.01-py3"
NAME = "nvcr.io/nvidia/pytorch:24.01-py3"


@pytest.fixture
def user(db: None) -> User:
    return a_user("ada", team=a_team("research"))


@pytest.fixture
def cluster(db: None) -> Cluster:
    cluster = a_cluster(name="lab")
    a_node(cluster, gpus=4, cores=16, memory_gb=64, features=list(features_with("docker")))
    return cluster


def taken(user: User, /, *lines: str, body: str = "true", **parts: Any) -> JobRequest:
    """A job of a script with these `#SBATCH` lines and this text behind them."""
    own = parts.pop("own", {})
    text = "\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), body, ""])
    given = {"script": text, "name": "run.sh", "folder": "/home/ada", **parts}
    return validate_job(user, {**own, "sbatch": given})


def refused(user: User, /, *lines: str, **parts: Any) -> dict[str, list[str]]:
    with pytest.raises(JobInvalid) as raised:
        taken(user, *lines, **parts)
    return raised.value.fields


def test_the_image_of_a_script_is_that_of_its_job(user: User, cluster: Cluster) -> None:
    job = taken(user, IMAGE, "--container-mounts=/data:/data:ro,.:/work").job
    assert (job.runtime, job.image) == ("docker", NAME)
    assert job.mounts == ["/data:/data:ro", "/home/ada:/work"]
    assert job.folder == ""


def test_the_working_folder_is_that_of_the_option(user: User, cluster: Cluster) -> None:
    assert taken(user, IMAGE, "--container-workdir=/work").job.folder == "/work"


@pytest.mark.parametrize(
    ("options", "output", "error_output"),
    [
        (["-o out/%j.txt"], "/work/out/%j.txt", ""),
        (["-o /home/ada/o -e /home/ada/sub/e"], "/work/o", "/inner/e"),
        ([], "/work/slurm-%j.out", ""),
    ],
)
def test_output_files_are_where_mounts_hold_them(
    user: User, cluster: Cluster, options: list[str], output: str, error_output: str
) -> None:
    mounts = "--container-mounts=/home/ada:/work,/home/ada/sub:/inner"
    request = taken(user, IMAGE, mounts, *options)
    assert (request.job.output, request.job.error_output) == (output, error_output)
    assert request.warnings == ()


def test_an_output_file_that_no_mount_holds_is_warned_about(user: User, cluster: Cluster) -> None:
    request = taken(user, IMAGE, "--container-mounts=/home/ada:/work:ro", "-o o.txt")
    assert request.job.output == ""
    assert request.warnings == (
        "line 4: --output: goes to the job's log alone: no mount that the job may write holds"
        " o.txt",
    )


def test_the_image_of_srun_lines_is_that_of_the_job(user: User, cluster: Cluster) -> None:
    body = f"M=/data:/data\nsrun {IMAGE} --container-mounts=$M:ro,$PWD:/w python a\nsrun b"
    request = taken(user, "-G1", body=body)
    assert (request.job.image, request.job.gpus_min) == (NAME, 1)
    assert request.job.mounts == ["/data:/data:ro", "/home/ada:/w"]
    assert any(
        "the whole script runs in the image of its srun lines" in w for w in request.warnings
    )


def test_the_fields_of_a_job_hold_over_its_scripts_options(user: User, cluster: Cluster) -> None:
    own = {"image": "own:1", "mounts": ["/own:/own"]}
    job = taken(user, IMAGE, "--container-mounts=/a", own=own).job
    assert (job.image, job.mounts) == ("own:1", ["/own:/own"])


@pytest.mark.parametrize(
    ("lines", "body", "message"),
    [
        ([], "srun --container-image=$1 a", "$1 is known only when the script runs; give"),
        ([], "srun --container-image=a:1 x\nsrun --container-image=b:1 y", "a job has one image"),
        (
            ["--container-image=a:1"],
            "srun --container-image=b:1 y",
            "a job has one image, and line",
        ),
        (
            [],
            "srun --container-image=/a.sqsh x",
            "line 2: --container-image: '/a.sqsh' is a squash",
        ),
        (["--container-image=/a.sqsh"], "", "line 2: --container-image: '/a.sqsh' is a squash"),
        (["--container-image=nvcr.io#a/b:1"], "", "'nvcr.io' is a registry without an image"),
        (["--container-name=x"], "", "line 2: --container-name: containers of earlier jobs are"),
        ([], "srun --container-name=x a", "line 2: --container-name: containers of earlier jobs"),
        ([], "eval 'srun --container-image=x y'", "line 2: its image cannot be read; give"),
        ([], f"srun {IMAGE} --container-mounts=$D:/d a", "--container-mounts: $D:/d is known only"),
        ([IMAGE, "--container-mounts=a:b"], "", "line 3: --container-mounts: 'a:b' is no mount"),
        (
            [IMAGE, "--container-mounts=/a:/x"],
            "srun --container-mounts=/b:/x a",
            "/b:/x and /a:/x have one target",
        ),
    ],
)
def test_what_cannot_run_in_one_image_is_refused(
    user: User, cluster: Cluster, lines: list[str], body: str, message: str
) -> None:
    problems = refused(user, *lines, body=body)["sbatch"]
    assert len(problems) == 1
    assert message in problems[0]


def test_what_sbatch_names_need_not_be_known_of_steps(user: User, cluster: Cluster) -> None:
    body = "srun --container-image=$IMAGE --container-mounts=$M a"
    request = taken(user, IMAGE, "--container-mounts=/data", body=body)
    assert (request.job.image, request.job.mounts) == (NAME, ["/data:/data"])


def test_an_image_is_refused_by_name_without_a_docker_node(user: User, db: None) -> None:
    a_node(a_cluster(name="lab"), gpus=4, features=list(features_with("process")))
    message = refused(user, IMAGE)["runtime"][0]
    assert message.startswith("line 2: --container-image: no node of lab offers the runtime docker")


def test_variables_of_the_host_do_not_replace_those_of_the_image(
    user: User, cluster: Cluster
) -> None:
    environment = {"PATH": "/opt/bin", "DATA": "/d", "HOME": "/home/ada"}
    line = [IMAGE, "--export=ALL", "--container-env=HOME"]
    job = taken(user, *line, environment=environment).job
    assert job.environment == {"DATA": "/d", "HOME": "/home/ada", "SLURM_SUBMIT_DIR": "/home/ada"}


def test_mounts_without_an_image_are_warned_about(user: User, cluster: Cluster) -> None:
    a_node(cluster, gpus=4, features=list(features_with("process")))
    request = taken(user, "--container-mounts=/a")
    assert (request.job.runtime, request.job.mounts) == ("process", [])
    assert "has no meaning without --container-image" in request.warnings[0]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"output": "/data/o"}, {}),
        ({"output": "o", "folder": "/data/sub"}, {}),
        ({"output": "/read/o"}, {"output"}),
        ({"error_output": "/tmp/o"}, {"error_output"}),
        ({"output": "o"}, {"output"}),
    ],
)
def test_an_output_file_of_a_container_lies_in_a_writable_mount(
    user: User, cluster: Cluster, fields: dict[str, str], named: set[str]
) -> None:
    data = {
        "name": "a", "image": "x:1", "script": "#!/bin/sh\n",
        "mounts": ["/data:/data", "/read:/read:ro"], **fields,
    }  # fmt: skip
    problems: dict[str, list[str]] = {}
    try:
        validate_job(user, data)
    except JobInvalid as error:
        problems = error.fields
    assert set(problems) == set(named)


def test_the_users_name_is_that_of_the_submission(user: User, cluster: Cluster) -> None:
    body = f"srun {IMAGE} --container-mounts=/scratch/$USER:/work a"
    job = taken(user, body=body, user="ada1").job
    assert job.mounts == ["/scratch/ada1:/work"]
    assert job.environment == {"USER": "ada1", "SLURM_SUBMIT_DIR": "/home/ada"}


def test_exported_values_are_known_on_srun_lines(user: User, cluster: Cluster) -> None:
    body = "srun --container-image=$IMG --container-mounts=$DATA:/data a"
    job = taken(user, "--export=ALL,IMG=x:1,DATA", body=body, environment={"DATA": "/d"}).job
    assert (job.image, job.mounts) == ("x:1", ["/d:/data"])


def test_a_variable_that_the_container_does_not_get_is_not_known(
    user: User, cluster: Cluster
) -> None:
    body = f"srun {IMAGE} --container-mounts=$HOME:/home a"
    environment = {"HOME": "/home/ada"}
    problem = refused(user, "--export=ALL", body=body, environment=environment)["sbatch"][0]
    assert "$HOME:/home is known only when the script runs; give its variables by" in problem
    job = taken(user, "--export=ALL,HOME", body=body, environment=environment).job
    assert job.mounts == ["/home/ada:/home"]
