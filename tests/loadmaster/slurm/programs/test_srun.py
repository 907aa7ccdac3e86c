"""`srun` inside a batch script: which tasks a step has, and what is refused with a remedy."""

import re

import pytest

from loadmaster.slurm.options.reading import ScriptError
from loadmaster.slurm.options.srun_table import SRUN
from loadmaster.slurm.programs.srun import (
    SILENT,
    USED,
    StepError,
    gpu_variables,
    other_mounts,
    read_step,
)
from loadmaster.slurm.steps.running import Step, failure_texts, ranges

ALONE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURMD_NODENAME": "n1"}
ONE = {**ALONE, "SLURM_CPUS_ON_NODE": "8"}
FOUR = {**ONE, "SLURM_NTASKS": "4"}
GPUS = {
    **FOUR,
    "LOADMASTER_DEVICES": "GPU-a,GPU-b,GPU-c",
    "LOADMASTER_GPU_TYPE": "A100",
    "SLURM_JOB_GPUS": "2,0,5",
    "SLURM_GPUS_ON_NODE": "3",
    "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c",
}
TWO_NODES = {**FOUR, "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "2"}


def step(env: dict[str, str], *words: str) -> Step:
    return read_step([*words, "prog", "-n", "9"], env)[1]


@pytest.mark.parametrize(
    ("env", "words", "tasks", "cores"),
    [
        (ONE, (), 1, 8),
        (FOUR, (), 4, 8),
        (FOUR, ("-n2",), 2, 8),
        (FOUR, ("-n", "2", "--exact"), 2, 2),
        (FOUR, ("--exclusive", "-n2"), 2, 2),
        (FOUR, ("-n2", "-c", "3"), 2, 6),
        ({**FOUR, "SLURM_CPUS_PER_TASK": "2"}, ("--exact",), 4, 8),
        (FOUR, ("--overlap",), 4, 0),
        ({**FOUR, "SLURM_STEP_ID": "0"}, ("-n1",), 1, 0),
        (ONE, ("-O", "-n", "20"), 20, 8),
        (ONE, ("--ntasks-per-node=3",), 3, 8),
        (ONE, ("--tasks-per-node=3",), 3, 8),
        (FOUR, ("--tasks-per-node=1",), 4, 8),
        (FOUR, ("--jobid=7", "-n1"), 1, 8),
        (GPUS, ("-n3", "--gpus=a100:2", "--exact"), 3, 3),
        ({**ONE, "LOADMASTER_DEVICES": "a,b"}, ("--ntasks-per-gpu=2", "--gpus=2"), 4, 8),
        ({**FOUR, "SLURM_EXACT": "1"}, ("-n2",), 2, 2),
        ({**FOUR, "SLURM_OVERLAP": "1"}, ("-n2",), 2, 0),
        ({**ONE, "SLURM_NTASKS_PER_NODE": "5"}, (), 5, 8),
        (TWO_NODES, ("-N1", "-n2"), 2, 8),
        (TWO_NODES, ("-n1",), 1, 8),
        (FOUR, ("-w", "n1"), 4, 8),
    ],
)  # fmt: skip
def test_a_step_has_the_tasks_and_the_cores_that_slurm_would_give_it(
    env: dict[str, str], words: tuple[str, ...], tasks: int, cores: int
) -> None:
    found = step(env, *words)
    assert (found.commands, found.cores) == ((("prog", "-n", "9"),) * tasks, cores)


@pytest.mark.parametrize(
    ("env", "words", "said"),
    [
        (TWO_NODES, (), "on 2 nodes, and it starts tasks on n1 alone; give -N1, start them by mpi"),
        (TWO_NODES, ("-N2", "-n2"), "submit processes: each"),
        (FOUR, ("-w", "n7"), "would be on n7, and"),
        (FOUR, ("-n9",), "9 tasks of 1 cores need 9, and the job has 8 here; give fewer"),
        (FOUR, ("-n0",), "--ntasks: '0' is no number"),
        (FOUR, ("--mpi=pmix",), "start MPI programs by mpirun"),
        (FOUR, ("--relative=1",), "--relative is not done here"),
        (FOUR, ("--jobid=8",), "--jobid=8 is another job's"),
        (GPUS, ("--gpus=4",), "4 GPUs are asked for, and the job has 3 here; give fewer"),
        (GPUS, ("--gpus-per-task=1", "-n4"), "4 GPUs are asked for"),
        (GPUS, ("--gres=gpu:V100:1",), "of the type V100 are asked for, and the job has A100"),
        (FOUR, ("--gres=gpu:1",), "1 GPUs are asked for, and the job has 0 here"),
    ],
)
def test_what_a_step_cannot_do_is_refused_with_the_remedy(
    env: dict[str, str], words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(StepError, match=re.escape(said)):
        step(env, *words)


def test_a_step_without_a_program_and_options_that_srun_has_not_are_refused() -> None:
    with pytest.raises(StepError, match="no program is given"):
        read_step(["-n2"], FOUR)
    with pytest.raises(ScriptError, match="srun has no option --aray"):
        read_step(["--aray=1", "prog"], FOUR)


def test_failures_are_told_together_by_exit_code() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    codes = {0: 3, 1: 3, 2: 0, 3: -9, 4: 3}
    assert list(failure_texts(codes)) == ["task 3: Killed", "tasks 0-1,4: Exited with exit code 3"]


def test_options_of_newer_slurms_are_known_and_never_refused_as_unknown() -> None:
    words = ["--external-launcher", "--tres-per-task=x", "--wait-all-nodes=1", "--x11", "prog"]
    options, _ = read_step(words, FOUR)
    assert sorted(options) == ["external-launcher", "tres-per-task", "wait-all-nodes", "x11"]
    assert SRUN.needs.keys() >= USED | SILENT


def seen(task: int, *words: str, env: dict[str, str] = GPUS) -> dict[str, str]:
    """Variables of GPUs of a task, of a step that holds the job's first GPUs."""
    found = step(env, *words)
    return gpu_variables(found, task, list(range(found.gpus.count)), env)


def test_tasks_see_their_gpus_by_uuid_and_by_number() -> None:
    assert seen(1, "-n2", "--gpus-per-task=1") == {
        "CUDA_VISIBLE_DEVICES": "GPU-b", "LOADMASTER_DEVICES": "GPU-b", "LOADMASTER_GPUS": "1",
        "SLURM_STEP_GPUS": "0", "SLURM_GPUS_ON_NODE": "2",
    }  # fmt: skip


def test_a_step_without_gpus_sees_none() -> None:
    assert seen(0, "-n1", "--gres=none") == {
        "CUDA_VISIBLE_DEVICES": "", "LOADMASTER_DEVICES": "", "LOADMASTER_GPUS": "0",
    }  # fmt: skip
    assert "SLURM_GPUS_ON_NODE" not in step(GPUS, "--gres=none").variables


def test_emulated_gpus_are_told_apart_but_never_seen_by_cuda() -> None:
    emulated = {**GPUS, "CUDA_VISIBLE_DEVICES": ""}
    found = seen(0, "--gpus=1", env=emulated)
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert found["SLURM_STEP_GPUS"] == "2"


def test_a_step_in_a_step_sees_no_other_gpus() -> None:
    inner = {**GPUS, **seen(1, "-n2", "--gpus-per-task=1"), "SLURM_STEP_ID": "0"}
    assert seen(0, "-n1", env=inner)["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert seen(0, "-n1", env=inner)["SLURM_STEP_GPUS"] == "0"


def test_options_of_the_submission_bind_steps_and_their_own_replace_them() -> None:
    asked = {**GPUS, "SLURM_GPUS_PER_TASK": "1", "SLURM_NTASKS": "3"}
    assert seen(2, env=asked)["CUDA_VISIBLE_DEVICES"] == "GPU-c"
    assert seen(2, "--gpus=2", env=asked)["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("", "A B HOME"),
        ("--export=ALL", "A B HOME"),
        ("--export=all,FOO=bar", "A B FOO HOME"),
        ("--export=A,PATH", "A"),
        ("--export=A,FOO=x y", "A FOO"),
        ("--export=FOO='a,b',B", "B FOO"),
        ("--export=NONE", ""),
        ("--export=nil", ""),
        ("--export=", ""),
        ("--export=ALL,NOTSET", "A B HOME"),
    ],
)
def test_a_step_has_the_variables_that_export_names(given: str, names: str) -> None:
    env = {**FOUR, "A": "1", "B": "2", "HOME": "/home/me", "CUDA_VISIBLE_DEVICES": ""}
    found = step(env, *([given] if given else [])).variables
    assert {name for name in found if name in ("A", "B", "FOO", "HOME")} == set(names.split())
    assert found["SLURM_JOB_ID"] == "7"
    assert found["CUDA_VISIBLE_DEVICES"] == ""


def test_a_script_may_set_what_its_steps_export() -> None:
    env = {**FOUR, "A": "1", "SLURM_EXPORT_ENV": "NONE"}
    assert "A" not in step(env).variables
    assert "A" in step(env, "--export=ALL").variables


@pytest.mark.parametrize(
    ("given", "seconds"), [("0:01", 60.0), ("1", 60.0), ("1:30", 120.0), ("0", None)]
)
def test_a_time_limit_of_a_step_is_whole_minutes(given: str, seconds: float | None) -> None:
    assert step(FOUR, f"--time={given}").limit_s == seconds


IN_IMAGE = {
    **ONE, "LOADMASTER_IMAGE": "nvcr.io/a/b:1", "LOADMASTER_MOUNTS": "/a:/a,/c:/d:ro,/e:/f:rw",
    "SLURM_SUBMIT_DIR": "/home/ada",
}  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("--container-image=nvcr.io#a/b:1",),
        ("--container-image=docker://nvcr.io#a/b:1", "--container-mounts=/a,/c:/d:ro,/e:/f"),
        ("--container-name=x", "--no-container-mount-home", "--container-writable"),
        ("--container-image=nvcr.io/a/b:1", "--mpi=pmix"),
        (),
    ],
)
def test_a_step_in_the_container_of_its_job_runs(words: tuple[str, ...]) -> None:
    assert step(IN_IMAGE, *words).commands == (("prog", "-n", "9"),)


@pytest.mark.parametrize(
    ("env", "words", "said"),
    [
        (IN_IMAGE, "--container-image=other:1", "other:1 is not the job's image, nvcr.io/a/b:1"),
        (ONE, "--container-image=nvcr.io#a/b:1", "the script runs without an image; give"),
        (ONE, "--container-name=x", "the script runs without an image"),
    ],
)
def test_a_step_in_another_container_than_the_jobs_is_refused(
    env: dict[str, str], words: str, said: str
) -> None:
    with pytest.raises(StepError, match=re.escape(said)):
        step(env, words)


def test_mounts_that_the_job_has_not_are_named() -> None:
    options = {"container-mounts": "/b,/other:/d,/home/ada:/a"}
    assert other_mounts(options, IN_IMAGE) == ["/b:/b"]
    assert other_mounts(options, ONE) == ["/b:/b", "/other:/d", "/home/ada:/a"]
    assert other_mounts({}, ONE) == []


def test_a_step_begins_in_the_working_folder_of_its_container() -> None:
    assert step(IN_IMAGE, "--container-workdir=/work").folder == "/work"
