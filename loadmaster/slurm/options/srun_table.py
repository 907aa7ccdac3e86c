"""Options of srun: names and forms."""

from loadmaster.slurm.options.reading import Program

SRUN = Program.of(
    "srun",
    """
    bcast? compress? contiguous debugger-test X:disable-status exact exclusive? external-launcher
    get-user-env? H:hold I:immediate? interactive K:kill-on-bad-exit? l:label multi-prog
    Z:no-allocate k:no-kill? nice? overlap O:overcommit s:oversubscribe? E:preserve-env propagate?
    pty? Q:quiet q:quit-on-interrupt reboot send-libs? spread-job spread-segments stepmgr test-only
    u:unbuffered use-min-nodes v:verbose V:version whole x11?
    container-entrypoint container-entrypoint-log container-mount-home container-readonly
    container-remap-root container-writable no-container-entrypoint no-container-mount-home
    no-container-remap-root
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
    container-env container-image container-mounts container-name container-save container-workdir
    """,
)
"""Options of srun by name, as in Debian's Slurm and later ones to 25.11, and of pyxis."""
