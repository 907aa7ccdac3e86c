"""Variables of a script that its node alone knows, and those that a step's tasks get."""

import os
from collections.abc import Mapping, Sequence

from loadmaster.slurm.values import Exported

TASK = ("/bin/sh", "-c", 'export SLURM_TASK_PID=$$; exec "$@"', "sh")
"""Words before those of a task: the process tells its own number, and becomes the program."""

KEPT = ("TMPDIR", "SLURM", "LOADMASTER_", "CUDA_")
"""Beginnings of variables that a step has whatever `--export` says: without those of CUDA it would
see GPUs of other jobs.
"""


def variables_on_node(
    gpus: Sequence[int], user: int | None, began_s: float, walltime_s: float
) -> dict[str, str]:
    """Variables of a script: its GPUs by their numbers on the node, its user, its time.

    `user` None: that of this process. `walltime_s` 0: no limit.
    """
    found = {
        "ENVIRONMENT": "BATCH",
        "SLURM_JOB_UID": str(os.getuid() if user is None else user),
        "SLURM_JOB_GID": str(os.getgid() if user is None else user),
        "SLURM_JOB_START_TIME": str(int(began_s)),
        "SLURM_NODE_ALIASES": "(null)",
        "SLURM_PRIO_PROCESS": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
    }
    if walltime_s:
        found["SLURM_JOB_END_TIME"] = str(int(began_s + walltime_s))
    if gpus:
        found["SLURM_GPUS_ON_NODE"] = str(len(gpus))
        found["SLURM_JOB_GPUS"] = ",".join(map(str, gpus))
    return found


def exported_to_step(wanted: Exported | None, own: Mapping[str, str]) -> dict[str, str]:
    """Variables of a step by its `--export`; None: all of the script's."""
    if wanted is None:
        return dict(own)
    found = dict(own) if wanted.all else {}
    for name, value in own.items():
        if name in wanted.names or name.startswith(KEPT):
            found[name] = value
    return {**found, **wanted.values}
