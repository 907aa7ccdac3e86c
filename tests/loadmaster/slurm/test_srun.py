"""`srun` inside a batch script: which tasks a step has, and what is refused with a remedy."""

import re

import pytest

from loadmaster.slurm.options import ScriptError
from loadmaster.slurm.srun import StepError, read_step
from loadmaster.slurm.steps import Step, ranges, worded

ALONE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURMD_NODENAME": "n1"}
ONE = {**ALONE, "SLURM_CPUS_ON_NODE": "8"}
FOUR = {**ONE, "SLURM_NTASKS": "4"}
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
    assert (found.command, found.tasks, found.cores) == (("prog", "-n", "9"), tasks, cores)


@pytest.mark.parametrize(
    ("env", "words", "said"),
    [
        (TWO_NODES, (), "on 2 nodes, and it starts tasks on n1 alone; give -N1, start them by mpi"),
        (TWO_NODES, ("-N2", "-n2"), "submit processes: each"),
        (FOUR, ("-w", "n7"), "would be on n7, and"),
        (FOUR, ("-n9",), "9 tasks of 1 cores need 9, and the job has 8 here; give fewer"),
        (FOUR, ("-n0",), "--ntasks: '0' is no number"),
        (FOUR, ("--mpi=pmix",), "start MPI programs by mpirun"),
        (FOUR, ("--multi-prog",), "by an srun of its own"),
        (FOUR, ("--pty",), "no terminal"),
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
    assert list(worded(codes)) == ["task 3: Killed", "tasks 0-1,4: Exited with exit code 3"]
