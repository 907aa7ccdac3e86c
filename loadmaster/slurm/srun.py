"""`srun` inside a batch script: reads its words, and runs their step on the script's own node."""

import getpass
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from loadmaster.slurm import values
from loadmaster.slurm.options import COMMAND_LINE, Program, ScriptError, read_words
from loadmaster.slurm.steps import Cores, Step, run, say

SRUN = Program.of(
    "srun",
    """
    bcast? compress? contiguous X:disable-status exact exclusive? get-user-env? H:hold I:immediate?
    interactive K:kill-on-bad-exit? l:label multi-prog Z:no-allocate k:no-kill nice? overlap
    O:overcommit s:oversubscribe? E:preserve-env propagate? pty? Q:quiet q:quit-on-interrupt reboot
    send-libs? spread-job test-only u:unbuffered use-min-nodes v:verbose whole
    """,
    """
    A:account accel-bind acctg-freq bb bbf b:begin M:clusters cluster-constraint comment
    C:constraint container cores-per-socket cpu-bind cpu-freq c:cpus-per-task cpus-per-gpu deadline
    delay-boot d:dependency D:chdir m:distribution epilog e:error x:exclude export
    B:extra-node-info gid gpu-bind gpu-freq G:gpus gpus-per-node gpus-per-socket gpus-per-task gres
    gres-flags het-group hint i:input jobid J:job-name L:licenses mail-type mail-user mcs-label mem
    mem-bind mem-per-cpu mem-per-gpu mincpus mpi msg-timeout network w:nodelist N:nodes n:ntasks
    ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode o:output p:partition
    power priority profile prolog qos r:relative reservation signal slurmd-debug sockets-per-node
    S:core-spec switches task-epilog task-prolog thread-spec T:threads threads-per-core t:time
    time-min tmp uid W:wait wckey
    """,
)
MEANT = frozenset({
    "chdir", "cpus-per-task", "error", "exact", "exclusive", "input", "job-name",
    "kill-on-bad-exit", "label", "mpi", "nodelist", "nodes", "ntasks", "ntasks-per-node", "output",
    "overcommit", "overlap",
})  # fmt: skip
SILENT = frozenset({
    "cpu-bind", "disable-status", "distribution", "hint", "mem", "mem-bind", "mem-per-cpu", "quiet",
    "unbuffered", "verbose", "whole",
})  # fmt: skip
"""Options that ask for what is so anyway, or that change no result."""

NOT_HERE = {
    "multi-prog": "start each program by an srun of its own",
    "pty": "a batch script has no terminal; leave it out",
    "relative": "it starts tasks on the script's own node alone; leave it out",
}
"""Options without which a step would do something else, with what to do instead."""


class StepError(Exception):
    """Step that cannot run here; the message names the remedy."""


def main() -> int:
    """Run the step of the command line; its exit code."""
    env = os.environ
    try:
        if "SLURM_JOB_ID" not in env or "LOADMASTER_RUN_DIR" not in env:
            raise StepError("it runs inside a batch script alone; submit one that calls it")
        options, step = read_step(sys.argv[1:], env)
    except (ScriptError, StepError, values.ValueFormatError) as error:
        say(f"error: {error}")
        return 1
    for name in sorted(options.keys() - MEANT - SILENT):
        say(f"warning: --{name} has no meaning here and is left out")
    cores = Cores(Path(env["LOADMASTER_RUN_DIR"]) / "steps")
    there = _number(env, "SLURM_CPUS_ON_NODE")
    cores.take(step.cores, there, lambda: say("waits for cores that other steps of the job hold"))
    number = str(cores.number())
    own = dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), number)
    step = replace(step, variables={**step.variables, **own})
    return run(step, env["SLURMD_NODENAME"], _names(env, number))


def read_step(words: Sequence[str], env: Mapping[str, str]) -> tuple[dict[str, str], Step]:
    """Options and the step that they ask for. Raises ScriptError, StepError, ValueFormatError."""
    given, command = read_words(words, COMMAND_LINE, SRUN)
    options = {one.name: one.value for one in given}
    if not command:
        raise StepError("no program is given; write it behind the options")
    tasks = _tasks(options, env)
    cores = _cores(options, env, tasks)
    step = Step(
        command=tuple(command),
        tasks=tasks,
        cores=cores,
        variables=_variables(options, env, tasks, cores),
        folder=options.get("chdir", "."),
        label="label" in options,
        output=options.get("output", ""),
        error=options.get("error", ""),
        source=options.get("input", ""),
        stops_at_failure=options.get("kill-on-bad-exit", "0") != "0",
    )
    return options, step


def _tasks(options: Mapping[str, str], env: Mapping[str, str]) -> int:
    """Tasks of the step; StepError if they would be on other nodes too."""
    for name, remedy in NOT_HERE.items():
        if name in options:
            raise StepError(f"--{name} is not done here: {remedy}")
    if options.get("mpi", "none") != "none":
        raise StepError(f"--mpi={options['mpi']} is not done here: start MPI programs by mpirun")
    node, nodes = env["SLURMD_NODENAME"], _number(env, "SLURM_JOB_NUM_NODES")
    if "nodes" in options:
        nodes = values.nodes(options["nodes"])[0]
    here = _count(options, "ntasks-per-node") or _number(env, "SLURM_NTASKS_PER_NODE")
    tasks = _count(options, "ntasks")
    if not tasks and "ntasks-per-node" not in options:
        tasks = _number(env, "SLURM_NTASKS", 0)
    tasks = tasks or nodes * here
    others = "" if min(tasks, nodes) == 1 else f"{min(tasks, nodes)} nodes"
    if options.get("nodelist", node) != node:
        others = options["nodelist"]
    if others:
        said = f"its tasks would be on {others}, and it starts tasks on {node} alone; give -N1"
        remedy = "start them by mpirun or ssh over LOADMASTER_HOSTS, or submit processes: each"
        raise StepError(f"{said}, {remedy}")
    return tasks


def _cores(options: Mapping[str, str], env: Mapping[str, str], tasks: int) -> int:
    """Cores that no other step uses meanwhile: all of the job, or those that it asks for."""
    there = _number(env, "SLURM_CPUS_ON_NODE")
    each = _count(options, "cpus-per-task") or _number(env, "SLURM_CPUS_PER_TASK")
    wanted = tasks * each
    if wanted > there and "overcommit" not in options:
        said = f"{tasks} tasks of {each} cores need {wanted}, and the job has {there} here"
        raise StepError(f"{said}; give fewer, ask for more at submission, or add --overcommit")
    if "overlap" in options or "SLURM_STEP_ID" in env:
        return 0
    is_exact = {"exact", "exclusive", "cpus-per-task"} & options.keys()
    return min(wanted, there) if is_exact else there


def _variables(
    options: Mapping[str, str], env: Mapping[str, str], tasks: int, cores: int
) -> dict[str, str]:
    """Variables of all tasks of a step, but for its number."""
    told = {"SLURM_CPUS_PER_TASK": "cpus-per-task", "SLURM_JOB_NAME": "job-name"}
    told["SLURM_NTASKS_PER_NODE"] = "ntasks-per-node"
    same = ("NTASKS", "NPROCS", "STEP_NUM_TASKS", "TASKS_PER_NODE", "STEP_TASKS_PER_NODE")
    return {
        **dict.fromkeys((f"SLURM_{name}" for name in same), str(tasks)),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), "1"),
        "SLURM_STEP_NODELIST": env["SLURMD_NODENAME"],
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": ",".join(map(str, range(tasks))),
        **({"SLURM_CPUS_ON_NODE": str(cores)} if cores else {}),
        **{name: options[option] for name, option in told.items() if option in options},
    }


def _names(env: Mapping[str, str], number: str) -> dict[str, str]:
    """Values of fields in names of files."""
    job = env["SLURM_JOB_ID"]
    return {
        "j": job,
        "J": f"{job}.{number}",
        "A": env.get("SLURM_ARRAY_JOB_ID", job),
        "a": env.get("SLURM_ARRAY_TASK_ID", "4294967294"),
        "N": env["SLURMD_NODENAME"],
        "n": "0",
        "s": number,
        "u": env.get("SLURM_JOB_USER", getpass.getuser()),
        "x": env.get("SLURM_JOB_NAME", ""),
    }


def _count(options: Mapping[str, str], name: str) -> int:
    try:
        return values.count(options[name]) if name in options else 0
    except values.ValueFormatError as problem:
        raise StepError(f"--{name}: {problem}") from None


def _number(env: Mapping[str, str], name: str, default: int = 1) -> int:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else default


if __name__ == "__main__":
    sys.exit(main())
