"""`srun` inside a batch script: reads its words, and runs their step on the script's own node."""

import getpass
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from loadmaster.slurm import values
from loadmaster.slurm.environment import exported_to_step
from loadmaster.slurm.gpus import AMOUNTS, StepGpus, step_gpus
from loadmaster.slurm.multi_prog import ProgramsError, commands_of
from loadmaster.slurm.options import COMMAND_LINE, Program, ScriptError, read_words
from loadmaster.slurm.steps import Account, Step, run, say
from loadmaster.version import __version__

SRUN = Program.of(
    "srun",
    """
    bcast? compress? contiguous debugger-test X:disable-status exact exclusive? external-launcher
    get-user-env? H:hold I:immediate? interactive K:kill-on-bad-exit? l:label multi-prog
    Z:no-allocate k:no-kill? nice? overlap O:overcommit s:oversubscribe? E:preserve-env propagate?
    pty? Q:quiet q:quit-on-interrupt reboot send-libs? spread-job spread-segments stepmgr test-only
    u:unbuffered use-min-nodes v:verbose V:version whole x11?
    """,
    """
    A:account accel-bind acctg-freq bb bbf bcast-exclude b:begin M:clusters cluster-constraint
    comment consolidate-segments C:constraint container container-id cores-per-socket cpu-bind
    cpu-freq c:cpus-per-task cpus-per-gpu deadline delay-boot d:dependency D:chdir m:distribution
    epilog e:error x:exclude export B:extra-node-info extra gid gpu-bind gpu-freq G:gpus
    gpus-per-node gpus-per-socket gpus-per-task gres gres-flags het-group hint i:input jobid
    J:job-name L:licenses mail-type mail-user mcs-label mem mem-bind
    mem-per-cpu mem-per-gpu mincpus mpi msg-timeout network w:nodelist N:nodes F:nodefile n:ntasks
    ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres
    oom-kill-step open-mode o:output pack-group p:partition power prefer priority prolog profile
    q:qos r:relative reservation resv-ports segment signal slurmd-debug sockets-per-node
    S:core-spec switches task-epilog task-prolog tasks tasks-per-node thread-spec T:threads
    threads-per-core t:time time-min tmp tree-width tres-bind tres-per-task uid wait-all-nodes
    W:wait wckey
    """,
)
"""Options of srun by name, of Debian's Slurm and of later ones to 25.11."""

USED = frozenset({
    *AMOUNTS, "chdir", "cpus-per-task", "error", "exact", "exclusive", "export", "gpu-bind",
    "input", "job-name", "jobid", "kill-on-bad-exit", "label", "mpi", "multi-prog", "nodelist",
    "nodes", "ntasks", "ntasks-per-gpu", "ntasks-per-node", "open-mode", "output", "overcommit",
    "overlap", "relative", "tasks", "tasks-per-node", "time",
})  # fmt: skip
SILENT = frozenset({
    "cpu-bind", "cpus-per-gpu", "disable-status", "distribution", "gres-flags", "hint", "mem",
    "mem-bind", "mem-per-cpu", "mem-per-gpu", "quiet", "unbuffered", "verbose", "wait-all-nodes",
    "whole",
})  # fmt: skip
"""Options that ask for what is so anyway, or that change no result. All others are warned about."""

SAME = {"tasks": "ntasks", "tasks-per-node": "ntasks-per-node"}
"""Other names of options."""

FROM_ENVIRONMENT = {
    "SLURM_EXACT": "exact",
    "SLURM_EXPORT_ENV": "export",
    "SLURM_GPUS": "gpus",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_PER_SOCKET": "gpus-per-socket",
    "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_GPU_BIND": "gpu-bind",
    "SLURM_KILL_BAD_EXIT": "kill-on-bad-exit",
    "SLURM_LABELIO": "label",
    "SLURM_NTASKS_PER_GPU": "ntasks-per-gpu",
    "SLURM_OPEN_MODE": "open-mode",
    "SLURM_OVERCOMMIT": "overcommit",
    "SLURM_OVERLAP": "overlap",
    "SLURM_STDERRMODE": "error",
    "SLURM_STDINMODE": "input",
    "SLURM_STDOUTMODE": "output",
}
"""Variables that srun takes for its options where these are not given."""

FLAGS = frozenset({"exact", "label", "overcommit", "overlap"})

BAD_OPTION = 255
"""Exit code for an option that srun has not, as Slurm's."""


class StepError(Exception):
    """Step that cannot run here; the message names the remedy."""


def main() -> int:
    """Run the step of the command line; its exit code."""
    words = sys.argv[1:]
    if words[:1] in (["-V"], ["--version"]):
        print(f"loadmaster {__version__}")
        return 0
    env = os.environ
    try:
        if "SLURM_JOB_ID" not in env or "LOADMASTER_RUN_DIR" not in env:
            raise StepError("it runs inside a batch script alone; submit one that calls it")
        options, step = read_step(words, env)
    except ScriptError as error:
        say(f"error: {error}")
        return BAD_OPTION
    except (StepError, ProgramsError, values.ValueFormatError) as error:
        say(f"error: {error}")
        return 1
    for name in sorted(options.keys() - USED - SILENT):
        say(f"warning: --{name} has no meaning here and is left out")

    # Hold the step's cores and GPUs, as soon as other steps of the job leave enough.
    account = Account(Path(env["LOADMASTER_RUN_DIR"]) / "steps")
    is_shared = step.cores == 0
    gpus = account.take(
        cores=(step.cores, _number(env, "SLURM_CPUS_ON_NODE")),
        gpus=(0 if is_shared else step.gpus.count, len(_devices(env))),
        tell=lambda: say("waits for cores or GPUs that other steps of the job hold"),
    )
    if is_shared:
        gpus = list(range(step.gpus.count))

    number = str(account.number())
    own = dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), number)
    step = replace(
        step,
        variables={**step.variables, **own},
        task_variables=tuple(gpu_variables(step, task, gpus, env) for task in range(step.tasks)),
    )
    return run(step, env["SLURMD_NODENAME"], _names(env, number))


def read_step(words: Sequence[str], env: Mapping[str, str]) -> tuple[dict[str, str], Step]:
    """Options of the command line, and the step that they ask for.

    Raises ScriptError, StepError, ProgramsError, ValueFormatError.
    """
    given, command = read_words(words, COMMAND_LINE, SRUN)
    named = {SAME.get(one.name, one.name): one.value for one in given}
    if not command:
        raise StepError("no program is given; write it behind the options")
    _refuse(named, env)
    options = {**_from_environment(named, env), **named}
    tasks = _tasks(options, env)
    cores = _cores(options, env, tasks)
    exported = values.exported(options["export"]) if "export" in options else None
    variables = {**exported_to_step(exported, env), **_variables(options, env, tasks, cores)}
    variables.pop("SLURM_GPUS_ON_NODE", None)  # the job's; a step with GPUs gets its own
    step = Step(
        commands=_commands(options, command, tasks),
        cores=cores,
        gpus=_gpus(options, env, tasks),
        variables=variables,
        folder=options.get("chdir", "."),
        label="label" in options,
        output=options.get("output", ""),
        error=options.get("error", ""),
        appends=options.get("open-mode", "").startswith("a"),
        source=options.get("input", ""),
        stops_at_failure=options.get("kill-on-bad-exit", "0") != "0",
        limit_s=_limit_s(options),
    )
    return named, step


def _refuse(options: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Raise StepError for an option without which the step would do something else."""
    if options.get("mpi", "none") != "none":
        raise StepError(f"--mpi={options['mpi']} is not done here: start MPI programs by mpirun")
    if options.get("relative", "0") != "0":
        said = "it starts tasks on the script's own node alone; leave it out"
        raise StepError(f"--relative is not done here: {said}")
    own = {env["SLURM_JOB_ID"], env.get("SLURM_ARRAY_JOB_ID")}
    if options.get("jobid", env["SLURM_JOB_ID"]) not in own:
        said = f"--jobid={options['jobid']} is another job's, and a script starts its own steps"
        raise StepError(f"{said}; leave it out")


def _from_environment(named: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Options by variables; those of GPUs only where the command line says nothing of GPUs."""
    found: dict[str, str] = {}
    for variable, option in FROM_ENVIRONMENT.items():
        value = env.get(variable, "")
        if value and not (option in FLAGS and value == "0"):
            found[option] = value
    if any(option in named for option in AMOUNTS):
        of_gpus = (*AMOUNTS, "ntasks-per-gpu")
        return {option: value for option, value in found.items() if option not in of_gpus}
    return found


def _commands(
    options: Mapping[str, str], command: Sequence[str], tasks: int
) -> tuple[tuple[str, ...], ...]:
    """Command of each task."""
    if "multi-prog" in options:
        return commands_of(Path(options.get("chdir", ".")) / command[0], tasks)
    return (tuple(command),) * tasks


def _tasks(options: Mapping[str, str], env: Mapping[str, str]) -> int:
    """Tasks of the step; StepError if they would be on other nodes too."""
    node = env["SLURMD_NODENAME"]
    nodes = _number(env, "SLURM_JOB_NUM_NODES")
    if "nodes" in options:
        nodes = values.nodes(options["nodes"])[0]
    each = _count(options, "ntasks-per-node") or _number(env, "SLURM_NTASKS_PER_NODE")
    tasks = _count(options, "ntasks") or _number(env, "SLURM_NTASKS", 0)
    if tasks and "ntasks-per-node" in options and tasks != nodes * each:
        said = f"--ntasks-per-node={each} does not fit {tasks} tasks on {nodes} nodes"
        say(f"warning: {said} and is left out")
    if not tasks and "ntasks-per-gpu" in options:
        tasks = _count(options, "ntasks-per-gpu") * step_gpus(options, 1, len(_devices(env))).count
    tasks = tasks or nodes * each
    others = "" if min(tasks, nodes) == 1 else f"{min(tasks, nodes)} nodes"
    if options.get("nodelist", node) != node:
        others = options["nodelist"]
    if others:
        said = f"its tasks would be on {others}, and it starts tasks on {node} alone; give -N1"
        remedy = "start them by mpirun or ssh over LOADMASTER_HOSTS, or submit processes: each"
        raise StepError(f"{said}, {remedy}")
    return tasks


def _cores(options: Mapping[str, str], env: Mapping[str, str], tasks: int) -> int:
    """Cores that no other step uses meanwhile: all of the job, or those that it asks for.

    0 for a step that shares cores and GPUs with others.
    """
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


def _gpus(options: Mapping[str, str], env: Mapping[str, str], tasks: int) -> StepGpus:
    """GPUs of the step; StepError for more than its job has here, or others."""
    there = len(_devices(env))
    gpus = step_gpus(options, tasks, there)
    own_type = env.get("LOADMASTER_GPU_TYPE", "")
    others = [name for name in gpus.types if name.casefold() != own_type.casefold()]
    if gpus.count and there and others:
        said = f"GPUs of the type {others[0]} are asked for, and the job has {own_type}"
        raise StepError(f"{said}; leave the type out")
    if gpus.count > there:
        said = f"{gpus.count} GPUs are asked for, and the job has {there} here"
        raise StepError(f"{said}; give fewer, or ask for more at submission")
    return gpus


def _devices(env: Mapping[str, str]) -> list[str]:
    """The job's GPUs on this node."""
    return [device for device in env.get("LOADMASTER_DEVICES", "").split(",") if device]


def gpu_variables(
    step: Step, task: int, gpus: Sequence[int], env: Mapping[str, str]
) -> dict[str, str]:
    """Variables by which a task sees its GPUs alone; `gpus` are the step's among its job's.

    Where the job's own CUDA_VISIBLE_DEVICES is empty, as of emulated GPUs, it stays so.
    """
    devices = _devices(env)
    if not devices:
        return {}
    chosen = step.gpus.binding.of_task(task, gpus)
    uuids = ",".join(devices[place] for place in chosen)
    found = {"LOADMASTER_DEVICES": uuids, "LOADMASTER_GPUS": str(len(chosen))}
    found["CUDA_VISIBLE_DEVICES"] = uuids if env.get("CUDA_VISIBLE_DEVICES", uuids) else ""
    numbers = env.get("SLURM_STEP_GPUS" if "SLURM_STEP_ID" in env else "SLURM_JOB_GPUS", "")
    numbers_of_job = numbers.split(",")
    if chosen and len(numbers_of_job) == len(devices):
        found["SLURM_STEP_GPUS"] = ",".join(numbers_of_job[place] for place in chosen)
    if gpus:
        found["SLURM_GPUS_ON_NODE"] = str(len(gpus))
    return found


def _limit_s(options: Mapping[str, str]) -> float | None:
    """Seconds after which the step is ended, whole minutes as of Slurm; None: never."""
    limit_s = values.time_s(options["time"]) if "time" in options else None
    return None if limit_s is None else math.ceil(limit_s / 60) * 60.0


def _variables(
    options: Mapping[str, str], env: Mapping[str, str], tasks: int, cores: int
) -> dict[str, str]:
    """Variables of all tasks of a step, but for its number."""
    told = {"SLURM_CPUS_PER_TASK": "cpus-per-task", "SLURM_JOB_NAME": "job-name"}
    told["SLURM_NTASKS_PER_NODE"] = "ntasks-per-node"
    same = ("NTASKS", "NPROCS", "STEP_NUM_TASKS", "TASKS_PER_NODE", "STEP_TASKS_PER_NODE")
    node = env["SLURMD_NODENAME"]
    address = env.get("LOADMASTER_HOST_ADDRESSES", "").split(",")[0] or "127.0.0.1"
    found = {
        **dict.fromkeys((f"SLURM_{name}" for name in same), str(tasks)),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), "1"),
        **dict.fromkeys(("SLURM_STEP_NODELIST", "SLURM_TOPOLOGY_ADDR"), node),
        **dict.fromkeys(("SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST"), address),
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": ",".join(map(str, range(tasks))),
        "SLURM_DISTRIBUTION": options.get("distribution", "block"),
        "SLURM_UMASK": f"{_umask():04o}",
    }
    if "SLURM_JOB_CPUS_PER_NODE" in env:
        found["SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0"] = env["SLURM_JOB_CPUS_PER_NODE"]
    if cores:
        found["SLURM_CPUS_ON_NODE"] = str(cores)
    if "label" in options:
        found["SLURM_LABELIO"] = "1"
    for name, option in told.items():
        if option in options:
            found[name] = options[option]
    return found


def _umask() -> int:
    """The process' umask, which is read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


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
