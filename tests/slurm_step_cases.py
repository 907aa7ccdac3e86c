"""Scripts with GPUs, steps and Slurm's own programs, which real Slurm and Loadmaster both run."""

from tests.sbatch_cases import Case, case

QUIET = "exec 2>/dev/null\n"
TELL = 'echo "$SLURM_PROCID ${SLURM_STEP_GPUS-unset} of ${SLURM_GPUS_ON_NODE-unset}"'
GPU_STEPS = """t() { echo "$@"; "$@" bash -c 'TELL' | sort; }
t srun -n2
t srun -n1 --gres=gpu:1
t srun -n2 --gpus=1
t srun -n2 --gpus=V100:2
t srun -n2 --gpus-per-task=1
t srun -n2 --gpus-per-node=2
t srun -n2 --gres=gpu:0
t srun -n2 --gres=none
t srun -n4 --gpu-bind=single:1
t srun -n4 --gpu-bind=single:2
t srun -n4 --gpu-bind=per_task:1
t srun -n3 --gpu-bind=per_task:1
t srun -n4 --gpus=3 --gpu-bind=single:1
t srun -n4 --gpu-bind=map_gpu:0,2
t srun -n4 --gpu-bind=mask_gpu:0x1,0x6
t srun -n4 --gpu-bind=closest
t srun -n2 --gres=gpu:2 --gpu-bind=single:1
t srun -n1 --overlap --gpus=1
srun -n2 --gpus=5 true; echo $?
srun -n4 --gpus-per-task=2 true; echo $?
srun -n2 --gpus=A100:1 true; echo $?
""".replace("TELL", TELL)
AT_A_TIME = """for i in 1 2 3; do
  srun -n1 {} bash -c 'echo "$SLURM_STEP_GPUS" >> gpus; sleep 2' &
done
wait
head -n 2 gpus | sort -u | wc -l
wc -l < gpus
rm gpus
"""
EXPORTED = """export A=1 B=2
t() { echo "$@"; "$@" -n1 /bin/sh -c 'echo "${A-no} ${B-no} ${FOO-no} ${HOME-no}"'; }
t srun --export=ALL
t srun --export=ALL,FOO=bar
t srun --export=all,FOO=bar
t srun --export=A,PATH
t srun --export=A,FOO=bar
t srun --export=NONE
t srun --export=none
t srun --export=NIL
t srun --export=FOO=bar
t srun --export=NOTSET,B
t srun --export=ALL,NOTSET
SLURM_EXPORT_ENV=NONE t srun
srun -n1 --export=NONE true; echo $?
"""
OPTIONS = """t() { "$@"; echo "rc $?"; }
t srun --cpu-bind=none -u bash -c 'echo task $SLURM_PROCID' | sort
t srun -n1 --gres=none echo one
t srun --kill-on-bad-exit=1 -n2 bash -c 'test $SLURM_PROCID = 1 && exit 3; sleep 60'
t srun -N1 -n1 --exclusive --mem=100M echo excl
t srun --jobid=$SLURM_JOB_ID -n1 echo jid
t srun -n1 --time=0:01 sleep 2
t srun -l -n2 echo labelled | sort
t srun --tasks-per-node=1 -N1 echo tpn
t srun -n1 --label --output=step_%j_%t.txt echo hi
t srun -n1 --no-such-option true
printf '0 echo first\\n1 echo %%t %%o\\n' > programs
t srun -n2 --multi-prog programs | sort
t srun -n1 --open-mode=append -o twice.txt echo one
t srun -n1 --open-mode=append -o twice.txt echo two
t srun -n2 bash -c 'test $SLURM_TASK_PID = $$ && echo own'
"""
LISTS = """scontrol show hostnames n[1-3,5],gpu-[01-02]
scontrol show hostnames "n[1-2]x[3-4]"
scontrol show hostnames | wc -l
scontrol show hostlist n1,n2,n4,gpu
scontrol show hostlistsorted n3,n1
nodes=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
test ${nodes[0]} = $SLURMD_NODENAME && echo own
"""
ITSELF = """squeue -h -j $SLURM_JOB_ID -o "%j %T %D %C %u %t"
squeue -h -j $SLURM_JOB_ID -o "%.10j|%-5t|%5t|%.3t|%A" | sed s/$SLURM_JOB_ID/N/
squeue -h --me -n itself -t R -o %j
squeue -h -j 99999; echo $?
scontrol -o show job $SLURM_JOB_ID | tr ' ' '\\n' |
  grep -E '^(JobName|JobState|NumNodes|NumTasks|NumCPUs|TimeLimit|Restarts|ExitCode|BatchFlag)='
scontrol show job 99999; echo $?
scontrol show nothing; echo $?
"""
ANOTHER = """cat > inner.sh <<'END'
#!/bin/bash
#SBATCH --output=inner.txt
echo "$1 $SLURM_JOB_NAME"
touch done
END
held=$(sbatch --parsable -J held -H -o held.txt inner.sh)
squeue -h -j $held -o "%j %t %r"
scancel $held
scontrol -o show job $held | tr ' ' '\\n' | grep ^JobState
many=$(sbatch --parsable -H -o held.txt -a 1-3 inner.sh)
squeue -h -j $many -o %K
scancel ${many}_2
squeue -h -j $many -r -o %K | sort
scancel $many
next=$(sbatch --parsable -J inner -n1 inner.sh word)
test $next -gt $SLURM_JOB_ID && echo greater
until test -e done; do sleep 0.2; done
sbatch inner.sh | grep -c '^Submitted batch job [0-9]*$'
"""
OF_NODES = """sinfo -h -o "%D %a %l"
sinfo -h -N -o "%N %c %D"
sinfo -h -n n1 -o "%G %f %z"
sinfo -h -o "%N|%.5D|%G" -n n[1-2]
sinfo -n n2 -o "%10N|%5D|%c"
sinfo -h -p none; echo $?
sinfo -t busy; echo $?
"""
OF_DEPENDENCIES = """cat > later.sh <<'END'
#!/bin/bash
END
t() {
  next=$(sbatch --parsable -o none -d "$1" later.sh)
  squeue -h -j $next -o %E | sed "s/$SLURM_JOB_ID/N/g"
  scontrol -o show job $next | tr ' ' '\\n' | grep ^Dependency | sed "s/$SLURM_JOB_ID/N/g"
  scancel $next
}
t after:$SLURM_JOB_ID+5
t afterok:$SLURM_JOB_ID
t afterany:$SLURM_JOB_ID
scontrol update JobId=$SLURM_JOB_ID; echo $?
scontrol update JobId=99999 Priority=0; echo $?
scontrol update JobId=$SLURM_JOB_ID NoSuch=1; echo $?
"""
OF_GPUS = "env | grep -E 'SLURM.*GPU|^ENVIRONMENT' | sed 's/JOB_GPUS=.*,.*/two/' | sort\n"
"""Which GPUs of the node a job has is chance, unless it has all."""

ONE = "-N1"
FAST = ("-N1", "-Cfast", "--mem-per-cpu=500")

STEP_CASES: tuple[Case, ...] = (
    case("gpus of a script", OF_GPUS, *FAST, "--gres=gpu:V100:2"),
    case("gpus by number", OF_GPUS, *FAST, "--gpus=2"),
    case("gpus by node", OF_GPUS, *FAST, "--gpus-per-node=2"),
    case("gpus by task", f"env | grep -E 'SLURM.*GPU' | sort\nsrun bash -c '{TELL}' | sort\n",
         *FAST, "--gpus-per-task=2", "-n2"),
    case("gpus by binding", f"env | grep -E 'SLURM.*GPU' | sort\nsrun bash -c '{TELL}' | sort\n",
         *FAST, "--gres=gpu:4", "--gpu-bind=single:1", "-n2"),
    case("gpus of an exclusive job", OF_GPUS, *FAST, "--exclusive", "--gres=gpu:1"),
    case("no gpus", OF_GPUS, *FAST),
    case("gpus of steps", QUIET + GPU_STEPS, *FAST, "--gres=gpu:V100:4", "-n4"),
    case("gpus of steps at a time", QUIET + AT_A_TIME.format("--exact --gpus=1")
         + AT_A_TIME.format("--exclusive --gres=gpu:1"), *FAST, "--gres=gpu:2", "-n4"),
    case("exported to steps", QUIET + EXPORTED, ONE, "-n2"),
    case("options of steps", QUIET + OPTIONS, ONE, "-n2"),
    case("lists of nodes", LISTS, ONE),
    case("a script in the queue", QUIET + ITSELF, ONE, "-n2", "-Jitself", "-t5"),
    case("a script submits another", QUIET + ANOTHER, ONE),
    case("nodes by sinfo", QUIET + OF_NODES, ONE),
    case("dependencies that are shown", QUIET + OF_DEPENDENCIES, ONE),
    case("user of a script", 'test "$SLURM_JOB_UID:$SLURM_JOB_GID" = "$(id -u):$(id -g)" && echo me'
         '\ntest "$SLURM_TASK_PID" = $$ && echo own\n', ONE),
)  # fmt: skip
