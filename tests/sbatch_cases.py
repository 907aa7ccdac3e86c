"""Scripts that real Slurm and Loadmaster both run, and the differences that docs/jobs.md names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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


def case(
    name: str,
    script: str,
    *options: str,
    arguments: tuple[str, ...] = (),
    then: str = "",
    **more: Any,
) -> Case:
    """One script; the first line is added where it is not given."""
    text = script if script.startswith("#!") or not script else BASH + script
    return Case(name, (Step(text, options, arguments, then),), **more)


def steps(name: str, *given: tuple[str, ...], **more: Any) -> Case:
    """Several scripts, each with its options."""
    return Case(name, tuple(Step(BASH + s, tuple(o)) for s, *o in given), **more)


ONE = (
    case("plain", "echo out\necho err >&2\npwd\n"),
    case("fails", "echo no >&2\nexit 3\n"),
    case("ends by a signal", "kill -KILL $$\n"),
    case("no input", "read word || echo nothing\n"),
    case("arguments", 'printf "%s|" "$@"\n', arguments=("two words", "--flag", "-n", "7", "")),
    case("python", '#!/usr/bin/env python3\n#SBATCH -J snake\nprint("it works")\n'),
    case("no interpreter", "#!/no/such/program\n", differs="a script that cannot start",
         where=("files", "states")),
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
    case("tasks of a node", "#SBATCH --tasks=2\necho $SLURM_NTASKS $SLURM_TASKS_PER_NODE\n",
         "-N1"),
    case("value in the next line", "#SBATCH --job-name\n#SBATCH two\necho $SLURM_JOB_NAME\n"),
    case("no space behind the prefix", "#SBATCH--job-name=two\necho $SLURM_JOB_NAME\n"),
    case("options without a meaning here", "#SBATCH --prefer=fast --wait-all-nodes=1 -k\n"
         "#SBATCH --kill-on-invalid-dep=yes --acctg-freq=30 -s --switches=1@5\necho ran\n"),
    case("lines for other systems", "#PBS -N pbs\n#BSUB -n 3\n#SBATCH -J own\n"
         "echo $SLURM_JOB_NAME\n", "--ignore-pbs"),
    case("Latin-1", "# caf\udce9\necho 'gr\udcfc\udcdfe' | od -An -c\n", "-J", "latin"),
    case("node of a feature", "echo $SLURMD_NODENAME\n", "-C", "fast"),
    case("node of one of two features", "echo $SLURMD_NODENAME\n", "-C", "[fast|fast]"),
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
    case("export all in small letters", MINE, "--export=all,OTHER=2", exported={"MINE": "1"}),
    case("export nil", MINE, "--export=Nil", exported={"MINE": "1"}),
    case("export nothing", MINE, "--export=", exported={"MINE": "1"}),
    case("export a value with a comma", MINE, "--export=OTHER='a,b',MINE"),
    case("export unsaid", "echo ${MINE:-none}\n", exported={"MINE": "1"},
         differs="variables where it is submitted", where=("files",)),
)  # fmt: skip

REFUSED = (
    case("CRLF", "echo one\r\n"),
    case("a word that is no option", "#SBATCH -n 2 stray\n"),
    case("ambiguous beginning", "#SBATCH --nt=2\n"),
    case("short option with an equals sign", "#SBATCH -c=3\n"),
    case("count of nodes by feature", "true\n", "-C", "slow*1"),
    case("memory twice", "true\n", "--mem=1G", "--mem-per-gpu=1G"),
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
    case("more nodes with GPUs than there are", "true\n", "-G3", "-N2"),
    case("minutes that are none", "true\n", "--dependency=after:1+x"),
    case("array that is none", "true\n", "--array=5-1"),
    case("feature of no node", "true\n", "-C", "slow", differs="what no node has yet",
         where=("submissions", "states"), stays=True),
)  # fmt: skip

ENDS = (
    case("time limit", "trap 'echo term' TERM\nsleep 100 &\nwait\necho after\nsleep 100\n",
         "-t", "1"),
    case("time limit obeyed", "trap 'test $SECONDS -ge 55 && echo late; exit 0' TERM\n"
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
    steps("numbers behind a comma wait for an end", ("exit 1\n",), ("true\n",),
          ("echo three\n", "-d", "afterok:{1},{0}")),
    steps("a number alone waits for an end", ("exit 1\n",), ("echo two\n", "-d", "{0}")),
    steps("condition in capitals", ("sleep 1\n",), ("echo two\n", "-d", "AFTEROK:{0}")),
    steps("no dependency", ("echo one\n", "--dependency="),),
    steps("singleton", ("sleep 2; echo one >> order\n", "-Jsame"), ("sleep 3\n", "-Jother"),
          ("echo two >> order\n", "-Jsame", "-d", "singleton")),
    steps("after a start", ("sleep 20; echo one >> order\n",),
          ("echo two >> order\n", "-d", "after:{0}")),
    steps("a minute after a start", ("date +%s > began\n",),
          ("test $(date +%s) -ge $(($(cat began) + 60)) && echo late enough\nrm began\n",
           "-d", "after:{0}+1")),
    steps("one of two suffices", ("exit 1\n",), ("sleep 1; echo two >> order\n",),
          ("echo three >> order\n", "-d", "afterok:{0}?afterok:{1}")),
    steps("none of two", ("exit 1\n",), ("sleep 1\n",),
          ("echo three\n", "-d", "afterok:{0}?afternotok:{1}"),
          differs="a dependency that can never be satisfied", where=("states",)),
    steps("never", ("sleep 1; exit 1\n",), ("echo two\n", "-d", "afterok:{0}"),
          differs="a dependency that can never be satisfied", where=("states",)),
)  # fmt: skip

ARRAYS = (
    case("array", "env | grep ^SLURM | grep -v 'JOB_*ID=' | sort\necho $SLURM_ARRAY_JOB_ID\n",
         "--array=1-5:2", M, "-Cfast"),
    steps("numbers of elements", ("echo $SLURM_JOB_ID >> ids\n", "-a", "1-3"),
          ("sort -u ids | wc -l; rm ids\n", "-d", "afterok:{0}")),
    case("array with an index twice", "echo $SLURM_ARRAY_TASK_COUNT >> counts\n", "-a", "1,3,1-2%1",
         M),
    case("array outputs", "echo $SLURM_ARRAY_TASK_ID\n", "-a", "0,7", "-o", "o-%A-%a-%3a.txt"),
    case("array in brackets", "echo $SLURM_ARRAY_TASK_COUNT >> counts\n", "-a", "[1-3]%2",
         "-o", "/dev/null"),
    case("empty array", "echo ${SLURM_ARRAY_TASK_ID-none}\n", "--array="),
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
    case("nodes of a range", "echo $SLURM_JOB_NUM_NODES $SLURM_NTASKS\n", "-N1-2", "-n12", M),
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

QUIET = "exec 2>/dev/null\n"
IN_TURN = """srun -n1 {0} bash -c 'echo a >> order; sleep 3; echo a >> order' 2>/dev/null &
sleep 1
srun -n1 {0} bash -c 'echo b >> order; sleep 3; echo b >> order' 2>/dev/null &
wait
"""
CODES = """srun bash -c 'exit $SLURM_PROCID' 2>/dev/null; echo $?
srun -n1 bash -c 'kill -KILL $$' 2>/dev/null; echo $?
srun -n1 /no/such/program 2>/dev/null; echo $?
touch none; srun -n1 ./none 2>/dev/null; echo $?; rm none
srun -n9 true 2>/dev/null; echo $?
srun -n3 bash -c 'test $SLURM_PROCID = 1 && exit 4; sleep 2; echo well' 2>/dev/null; echo $?
srun -K -n3 bash -c 'test $SLURM_PROCID = 1 && exit 4; sleep 60' 2>/dev/null; echo $?
"""
HERE = "env 2>/dev/null | grep ^SLURM | grep -v NODELIST= | grep -v NODENAME= | sort -u"

STEPS = (
    case("steps", QUIET + "srun echo one\nsrun -l bash -c 'echo $SLURM_PROCID $SLURM_STEP_ID'"
         " | sort\nsrun -n1 -D / pwd\n", "-N1", "-n2"),
    case("variables of a step", "srun env | grep ^SLURM | sort -u\n", "-N1", "-n2", "-c2", M,
         "-Cfast"),
    case("variables of a small step", QUIET + "srun -n1 --exact -J mine env"
         " | grep ^SLURM | sort\nsrun -n1 -c2 env | grep ^SLURM | sort\n", "-n3", M, "-Cfast"),
    case("exit codes of steps", CODES, "-N1", "-n4"),
    case("a step fails", "srun bash -c 'exit 3'\n", "-Cfast"),
    case("steps in turn", IN_TURN.format(""), "-N1", "-n2"),
    case("exact steps at a time", IN_TURN.format("--exact"), "-N1", "-n2"),
    case("exclusive steps at a time", IN_TURN.format("--exclusive"), "-N1", "-n2"),
    case("overlapping steps", IN_TURN.format("--overlap"), "-N1", "-n2"),
    case("more exclusive steps than cores", "for i in 1 2 3 4 5; do\n"
         "srun -n1 --exclusive bash -c 'echo >> ran; sleep 0.2' 2>/dev/null &\ndone\nwait\n",
         "-N1", "-n2"),
    case("input of steps", QUIET + "printf 'one\\ntwo' > in\nsrun -l cat < in | sort\n"
         "srun -l -i in cat | sort\nsrun -l -i none cat\nsrun -l -i 1 cat < in\n", "-N1", "-n2"),
    case("labels of steps", "srun -O -n 11 -l echo x | sort\n"),
    case("outputs of steps", QUIET + "srun -o o-%t-%s-%x-%j-%3t bash -c 'echo $SLURM_PROCID'\n"
         "srun -o both -e e-%J bash -c 'echo out; echo err >&2'\n", "-N1", "-n2", "-Jme"),
    case("steps on one of several nodes", f"srun -N1 -n2 {HERE}\nsrun -n1 {HERE}\n",
         "-N2", "-n4", "--ntasks-per-node=2", M),
    case("steps on several nodes", "srun -n2 true 2>/dev/null; echo $?\n", "-N2",
         differs="srun on other nodes, `--mpi` of several tasks", where=("files",)),
    case("signal for steps", "trap 'echo script' USR1\n"
         "srun bash -c 'trap \"echo step; exit 7\" USR1; while :; do sleep 0.2; done' 2>/dev/null\n"
         "echo $?\n", "-t1", "--signal=USR1@50", "-N1", "-n2"),
    case("time limit of steps", "trap 'echo script' TERM\n"
         "srun bash -c 'trap \"echo step; exit 7\" TERM; while :; do sleep 0.2; done' 2>/dev/null\n"
         "sleep 100\n", "-t1", "-N1", "-n2"),
)  # fmt: skip

CASES = (*ENDS, *STEPS, *ONE, *EXPORTS, *REFUSED, *CHAINS, *ARRAYS, *NODES)

SLURMS_OWN = frozenset({
    "SLURM_CONF", "SLURM_DISTRIBUTION", "SLURM_JOB_END_TIME", "SLURM_JOB_START_TIME",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_PRIO_PROCESS", "SLURM_SRUN_COMM_HOST", "SLURM_SRUN_COMM_PORT",
    "SLURM_STEP_LAUNCHER_PORT", "SLURM_TASK_PID", "SLURM_TOPOLOGY_ADDR", "SLURM_WORKING_CLUSTER",
})  # fmt: skip
"""Variables that Loadmaster does not set, or that differ by the machine and the time."""
