"""Scripts that real Slurm and Loadmaster both run, and the differences that docs/jobs.md names."""

from collections.abc import Mapping
from dataclasses import dataclass, field

BASH = "#!/bin/bash\n"
M = "--mem-per-cpu=500"
DUMP = "env | grep ^SLURM | sort\n"


@dataclass(frozen=True, slots=True)
class Step:
    """Submission of a script: {0} stands for the first job's number, {now} for the time.

    A word in `then` is done once the file `started` is there: cancel, or requeue.
    """

    script: str
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    then: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """Steps in a folder of their own; `differs` is the row of docs/jobs.md, "" for none.

    `where` says what differs: "states", "files" or "submissions"; `stays`: one of both waits on.
    """

    name: str
    steps: tuple[Step, ...]
    folders: tuple[str, ...] = ()
    exported: Mapping[str, str] = field(default_factory=dict)
    differs: str = ""
    where: tuple[str, ...] = ()
    stays: bool = False


def case(name: str, script: str, *options: str, **more: object) -> Case:
    """One script; the first line is added where it is not given."""
    text = script if script.startswith("#!") or not script else BASH + script
    arguments = more.pop("arguments", ())
    step = Step(text, options, arguments, str(more.pop("then", "")))  # type: ignore[arg-type]
    return Case(name, (step,), **more)  # type: ignore[arg-type]


def steps(name: str, *given: tuple[str, ...], **more: object) -> Case:
    """Several scripts, each with its options."""
    return Case(name, tuple(Step(BASH + s, o) for s, *o in given), **more)  # type: ignore[arg-type]


ONE = (
    case("plain", "echo out\necho err >&2\npwd\n"),
    case("fails", "echo no >&2\nexit 3\n"),
    case("ends by a signal", "kill -KILL $$\n"),
    case("no input", "read word || echo nothing\n"),
    case("arguments", 'printf "%s|" "$@"\n', arguments=("two words", "--flag", "-n", "7", "")),
    case("python", '#!/usr/bin/env python3\n#SBATCH -J snake\nprint("it works")\n'),
    case("no interpreter", "#!/no/such/program\n", differs="a script that cannot start",
         where=("states",)),
    case("variables", DUMP, "-n", "2", "-c2", M, "-Cfast"),
    case("variables of a node", DUMP, "--ntasks-per-node=3", "--mem", "600M", "-Cfast"),
    case("variables without options", DUMP, "-Cfast", differs="memory that is not asked for",
         where=("files",)),
    case("variables of an exclusive job", "#SBATCH --exclusive\n" + DUMP, M, "-Cfast"),
    case("outputs", "echo out; echo err >&2\n", "-J", "name", "-o", "o-%x-%u-%j-%A-%a-%%-%n.txt",
         "-e", "e-%22j.txt"),
    case("one file for both", "echo out; echo err >&2\n", "-o", "all.txt", "-e", "all.txt"),
    case("output in a folder", "echo out\n", "-o", "logs/out.txt", folders=("logs",)),
    case("output in no folder", "touch ran\n", "-o", "missing/out.txt",
         differs="a script that cannot start", where=("states",)),
    case("no output", "echo out; touch ran\n", "-o", "/dev/null"),
    case("chdir", "pwd; touch here\n", "-D", "sub", folders=("sub",)),
    case("chdir to nowhere", "pwd\n", "--chdir=/no/such/folder", "-o", "/dev/null",
         differs="a folder that the node has not", where=("states",)),
    case("options twice", "#SBATCH -J one\n#SBATCH --job-name=two\necho $SLURM_JOB_NAME\n"),
    case("command line first", "#SBATCH -J one\necho $SLURM_JOB_NAME\n", "--job-name", "two"),
    case("lines after a command", "#SBATCH -J one\n: ; \n#SBATCH -J two\necho $SLURM_JOB_NAME\n"),
    case("quotes", "#SBATCH --job-name=\"two words\" -o 'a file.txt' # -J no\n"
         "echo $SLURM_JOB_NAME\n"),
    case("beginning of an option", "#SBATCH --ntasks-per-n=2\necho $SLURM_NTASKS\n"),
    case("node of a feature", "echo $SLURMD_NODENAME\n", "-C", "fast"),
    case("begin", 'test $(date +%s) -ge $(($1 + 6)) && echo late enough\n', "--begin=now+6",
         arguments=("{now}",)),
)  # fmt: skip

MINE = "echo ${MINE:-none} ${OTHER:-none}\n"

EXPORTS = (
    case("export none", MINE, "--export=NONE", exported={"MINE": "1"}),
    case("export some", MINE, "--export=MINE,OTHER=2",
         exported={"MINE": "1"}),
    case("export all", MINE, "--export=ALL,OTHER=2",
         exported={"MINE": "1"}),
    case("export unsaid", "echo ${MINE:-none}\n", exported={"MINE": "1"},
         differs="variables where it is submitted", where=("files",)),
)  # fmt: skip

REFUSED = (
    case("CRLF", "echo one\r\n"),
    Case("no first line", (Step("echo one\n"),)),
    Case("empty", (Step(""),)),
    case("unknown option", "#SBATCH --no-such-option\n"),
    case("time that is none", "#SBATCH --time=soon\n"),
    case("memory that is none", "#SBATCH --mem=much\n"),
    case("tasks that are none", "#SBATCH -n 0\n"),
    case("more memory than a node has", "true\n", "--mem-per-cpu=4G", "-c", "8"),
    case("more cores than a node has", "true\n", "-c", "9"),
    case("dependency on nothing", "true\n", "--dependency=afterok:999999",
         differs="a dependency on an unknown job", where=("submissions", "states", "files")),
    case("array that is none", "true\n", "--array=5-1"),
    case("feature of no node", "true\n", "-C", "slow", differs="what no node has yet",
         where=("submissions", "states"), stays=True),
)  # fmt: skip

ENDS = (
    case("time limit", "trap 'echo term' TERM\nsleep 100 &\nwait\necho after\nsleep 100\n",
         "-t", "1"),
    case("time limit obeyed", "trap 'test $SECONDS -ge 50 && echo late; exit 0' TERM\n"
         "sleep 100 &\nwait\n", "--time=0:30", differs="a time limit of seconds",
         where=("files",)),
    case("signal before the end", "trap 'echo usr1; exit 0' USR1\nsleep 100 &\nwait\n", "-t1",
         "--signal=B:USR1@50"),
    case("signal that is not for the script", "trap 'echo usr1' USR1\n(sleep 30; echo slept) &\n"
         "wait\n", "-t1", "--signal=USR1@50"),
    case("signal that is none", "true\n", "--signal=USR9"),
    case("cancelled", "touch started\nsleep 100\n", then="cancel"),
    case("cancelled and well", "trap 'echo term; exit 0' TERM\ntouch started\nsleep 100 &\nwait\n",
         then="cancel", differs="a cancelled script that ends with 0", where=("states",)),
    case("requeued", "echo ${SLURM_RESTART_COUNT:-0} >> runs\ntouch started\n"
         "test -n \"$SLURM_RESTART_COUNT\" || sleep 100\necho done\n", "--requeue", then="requeue"),
)  # fmt: skip

CHAINS = (
    steps("afterok", ("sleep 2; echo one >> order\n",),
          ("echo two >> order\n", "-d", "afterok:{0}")),
    steps("afternotok", ("echo one >> order; exit 1\n",),
          ("echo two >> order\n", "-d", "afternotok:{0}")),
    steps("afterany", ("exit 1\n",), ("true\n",),
          ("echo three\n", "--dependency=afterany:{0}:{1}")),
    steps("never", ("sleep 1; exit 1\n",), ("echo two\n", "-d", "afterok:{0}"),
          differs="a dependency that can never be satisfied", where=("states",)),
)  # fmt: skip

ARRAYS = (
    case("array", "env | grep ^SLURM | grep -v 'JOB_*ID=' | sort\necho $SLURM_ARRAY_JOB_ID\n",
         "--array=1-5:2", M, "-Cfast"),
    steps("numbers of elements", ("echo $SLURM_JOB_ID >> ids\n", "-a", "1-3"),
          ("sort -u ids | wc -l; rm ids\n", "-d", "afterok:{0}")),
    case("array outputs", "echo $SLURM_ARRAY_TASK_ID\n", "-a", "0,7", "-o", "o-%A-%a-%3a.txt"),
    case("array one at a time", "echo $SLURM_ARRAY_TASK_ID >> order\nsleep 0.3\n", "-a", "3-5%1"),
    case("array with failures", "exit $SLURM_ARRAY_TASK_ID\n", "-a", "0-2"),
    steps("after an array", ("sleep 1; echo one >> order\n", "-a", "1-3"),
          ("echo two >> order\n", "-d", "afterok:{0}")),
    steps("after an element", ("exit $SLURM_ARRAY_TASK_ID\n", "-a", "0-1"),
          ("echo two\n", "-d", "afternotok:{0}_1")),
)  # fmt: skip

SPREAD = """env | grep ^SLURM | grep -v NODELIST= | grep -v NODENAME= | sort
case ${SLURM_JOB_NODELIST/[[]/} in $SLURMD_NODENAME*) echo first; esac
"""
"""Of two equal nodes either may be the first, which runs the script."""

NODES = (
    case("several nodes", SPREAD, "-N", "2", "-n", "4", "--ntasks-per-node=2", "-c", "2", M),
    case("nodes alone", SPREAD, "-N2", M),
    case("tasks over nodes", SPREAD, "-n", "16", M),
    case("memory of several nodes", SPREAD, "-N", "2", "--mem=1G"),
    case(
        "more nodes than there are",
        "true\n",
        "-N",
        "3",
        differs="more nodes than there are",
        where=("submissions", "states"),
        stays=True,
    ),
)

CASES = (*ENDS, *ONE, *EXPORTS, *REFUSED, *CHAINS, *ARRAYS, *NODES)

SLURMS_OWN = frozenset({
    "SLURM_CONF", "SLURM_JOB_GID", "SLURM_JOB_UID", "SLURM_NODE_ALIASES", "SLURM_PRIO_PROCESS",
    "SLURM_TASK_PID", "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN",
    "SLURM_WORKING_CLUSTER",
})  # fmt: skip
"""Variables that Loadmaster does not set."""
