"""Steps as processes: variables, output, exit codes, and cores that steps share."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.builders_agent import until
from tests.builders_processes import is_running

SH = "/bin/sh"


class Script:
    """Place of a script: its run's folder, and the variables that it has."""

    def __init__(self, folder: Path, cores: int = 4) -> None:
        self.folder = folder
        self.env = {
            "PATH": "/usr/bin:/bin",
            "SLURM_JOB_ID": "700",
            "SLURM_JOB_NAME": "mine",
            "SLURM_JOB_USER": "ada",
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_CPUS_ON_NODE": str(cores),
            "SLURMD_NODENAME": "n1",
            "LOADMASTER_RUN_DIR": str(folder),
        }

    def srun(self, *words: str, pipe: int = subprocess.PIPE) -> "subprocess.Popen[str]":
        """Start a step."""
        argv = [sys.executable, "-m", "loadmaster.slurm.programs.srun", *words]
        env = {**self.env, "PYTHONPATH": str(Path(__file__).parents[4])}
        return subprocess.Popen(
            argv, cwd=self.folder, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def done(self, *words: str, given: str = "") -> tuple[int, list[str], str]:
        """Exit code, sorted lines and errors of a step."""
        process = self.srun(*words)
        out, err = process.communicate(given, timeout=60)
        return process.returncode, sorted(out.splitlines()), err


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def test_tasks_know_their_number_and_their_step(script: Script) -> None:
    tell = 'echo "$SLURM_PROCID $SLURM_LOCALID $SLURM_STEP_ID $SLURM_NTASKS $SLURM_GTIDS"'
    assert script.done("-n2", SH, "-c", tell)[:2] == (0, ["0 0 0 2 0,1", "1 1 0 2 0,1"])
    assert script.done("-n1", SH, "-c", tell)[:2] == (0, ["0 0 1 1 0"])


def test_the_highest_exit_code_is_the_steps_and_failures_are_told(script: Script) -> None:
    code, _, said = script.done("-n3", SH, "-c", "exit $SLURM_PROCID")
    assert (code, said.splitlines()) == (
        2,
        ["srun: error: n1: task 1: Exited with exit code 1",
         "srun: error: n1: task 2: Exited with exit code 2"],
    )  # fmt: skip
    assert script.done("-n1", SH, "-c", "kill -KILL $$")[0] == 128 + 9
    assert script.done("-n1", "/no/such/program")[0] == 2
    assert script.done("-n1", "-D", "/no/such/folder", "true")[0] == 2


def test_output_bears_labels_and_goes_to_files_by_task(script: Script) -> None:
    assert script.done("-n2", "-l", SH, "-c", "printf x")[1] == ["0: x", "1: x"]
    words = ("-n2", "-o", "%x-%t-%2t-%j.txt", SH, "-c", "echo $SLURM_PROCID; echo err >&2")
    assert script.done(*words) == (0, [], "")
    assert (script.folder / "mine-1-01-700.txt").read_text() == "1\nerr\n"


def test_all_tasks_read_what_the_step_is_given(script: Script) -> None:
    assert script.done("-n2", "-l", "cat", given="one\n")[1] == ["0: one", "1: one"]
    assert script.done("-n1", "cat", given="one\n")[1] == ["one"]
    assert script.done("-n2", "-l", "-i", "1", "cat", given="one\n")[1] == ["1: one"]


def test_a_failure_ends_the_other_tasks_where_that_is_asked_for(script: Script) -> None:
    tell = "test $SLURM_PROCID = 0 && exit 3; exec sleep 60"
    began = time.monotonic()
    assert script.done("-n2", "-K", SH, "-c", tell)[0] == 128 + 15
    assert time.monotonic() - began < 50


def test_a_signal_to_srun_reaches_every_task_once(script: Script) -> None:
    tell = "trap 'echo told; exit 5' USR1; echo up >&2; while :; do sleep 0.1; done"
    process = script.srun("-n2", SH, "-c", tell)
    assert process.stderr is not None
    assert [process.stderr.readline() for _ in range(2)] == ["up\n", "up\n"]
    process.send_signal(10)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()) == (5, ["told", "told"])


def test_steps_wait_for_cores_that_others_hold(script: Script) -> None:
    """Of four cores, three steps of two: the third begins when one of the others has ended."""
    tell = "echo >> began; while ! test -e go; do sleep 0.05; done"
    steps = [script.srun("-n1", "-c2", SH, "-c", tell, pipe=subprocess.DEVNULL) for _ in range(3)]
    began = script.folder / "began"
    until(lambda: began.exists() and len(began.read_text()) == 2)
    waits = [step for step in steps if not psutil.Process(step.pid).children()]
    assert len(waits) == 1
    holder = next(step for step in steps if step not in waits)
    task = psutil.Process(holder.pid).children()[0]
    holder.kill()  # the kernel frees the cores of a step that is gone
    until(lambda: len(began.read_text()) == 3)
    assert is_running(task)
    (script.folder / "go").touch()
    assert sorted(step.wait(60) for step in steps) == [-9, 0, 0]


def test_outside_of_a_script_there_are_no_steps(script: Script) -> None:
    del script.env["LOADMASTER_RUN_DIR"]
    code, _, said = script.done("true")
    assert (code, said) == (
        1, "srun: error: it runs inside a batch script alone; submit one that calls it\n",
    )  # fmt: skip


def test_an_option_without_a_meaning_is_named(script: Script) -> None:
    code, lines, said = script.done("-n1", "--switches=5", "echo", "--time")
    assert (code, lines) == (0, ["--time"])
    assert said == "srun: warning: --switches has no meaning here and is left out\n"
    assert script.done("--no-such-option", "true")[0] == 255


def with_gpus(script: Script, devices: str = "GPU-a,GPU-b") -> None:
    """Give the script's job GPUs."""
    script.env |= {"LOADMASTER_DEVICES": devices, "CUDA_VISIBLE_DEVICES": devices}


def test_steps_at_a_time_have_different_gpus_and_wait_for_one(script: Script) -> None:
    """Of two GPUs, three steps of one: the third gets the GPU of the one that ends first."""
    with_gpus(script)
    tell = 'echo "$CUDA_VISIBLE_DEVICES" >> seen; while ! test -e go; do sleep 0.05; done'
    words = ("-n1", "--exact", "--gpus=1", SH, "-c", tell)
    steps = [script.srun(*words, pipe=subprocess.DEVNULL) for _ in range(3)]
    seen = script.folder / "seen"
    until(lambda: seen.exists() and len(seen.read_text().splitlines()) == 2)
    assert sorted(seen.read_text().split()) == ["GPU-a", "GPU-b"]
    (script.folder / "go").touch()
    assert [step.wait(60) for step in steps] == [0, 0, 0]
    assert len(seen.read_text().splitlines()) == 3


def test_steps_that_overlap_or_want_no_gpu_do_not_wait_for_one(script: Script) -> None:
    with_gpus(script, "GPU-a")
    hold = "echo up; while ! test -e go; do sleep 0.05; done"
    holder = script.srun("-n1", "--exact", "--gpus=1", SH, "-c", hold)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "up\n"
    tell = 'echo "gpu $CUDA_VISIBLE_DEVICES"'
    assert script.done("-n1", "--overlap", "--gpus=1", SH, "-c", tell)[1] == ["gpu GPU-a"]
    assert script.done("-n1", "--exact", "--gres=gpu:0", SH, "-c", tell)[1] == ["gpu "]
    (script.folder / "go").touch()
    holder.communicate(timeout=60)
    assert holder.returncode == 0


def test_each_task_knows_its_own_process(script: Script) -> None:
    _, lines, _ = script.done("-n2", SH, "-c", 'test "$SLURM_TASK_PID" = $$ && echo same')
    assert lines == ["same", "same"]


def test_a_program_is_sought_in_the_path_that_its_step_has(script: Script) -> None:
    assert script.done("-n1", "--export=NONE", "true")[0] == 2
    assert script.done("-n1", "--export=NONE", "/bin/true")[0] == 0
    (script.folder / "plain").touch()
    assert script.done("-n1", "./plain")[0] == 13


def test_tasks_run_programs_of_their_own(script: Script) -> None:
    (script.folder / "programs").write_text("0 echo first\n* echo task %t\n")
    assert script.done("-n2", "--multi-prog", "programs")[1] == ["first", "task 1"]


def test_a_step_ends_at_its_time_limit(script: Script) -> None:
    program = f"""
from loadmaster.slurm.steps.gpus import StepGpus
from loadmaster.slurm.steps.running import Step, run
step = Step((("sleep", "60"),), 1, StepGpus(0), variables={script.env!r}, limit_s=0.2)
raise SystemExit(run(step, "n1", {{}}))
"""
    env = {"PYTHONPATH": str(Path(__file__).parents[4])}
    assert subprocess.run([sys.executable, "-c", program], env=env).returncode == 128 + 15


def test_files_are_appended_to_where_that_is_asked_for(script: Script) -> None:
    for _ in range(2):
        script.done("-n1", "--open-mode=append", "-o", "said", "echo", "x")
    assert (script.folder / "said").read_text() == "x\nx\n"


def test_the_version_is_told(script: Script) -> None:
    code, lines, _ = script.done("--version")
    assert code == 0
    assert lines[0].startswith("loadmaster ")


def test_children_of_the_script_that_became_srun_are_not_its_tasks(script: Script) -> None:
    step = f"exec {sys.executable} -m loadmaster.slurm.programs.srun -n1 sleep 2"
    env = {**script.env, "PYTHONPATH": str(Path(__file__).parents[4])}
    done = subprocess.run(
        [SH, "-c", f"sleep 0.1 & {step}"],
        cwd=script.folder, env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
