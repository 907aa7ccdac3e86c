"""Variables of a script that only its node knows, and those of a step."""

import os
from collections.abc import Mapping, Sequence

from loadmaster.slurm.options.values import Exported

TASK = ("/bin/sh", "-c", 'export SLURM_TASK_PID=$$; exec "$@"', "sh")
"""Words before those of a task: the shell sets its process number and becomes the program."""

KEPT = ("TMPDIR", "SLURM", "LOADMASTER_", "CUDA_")
"""Beginnings of variables that a step has in spite of its `--export`.

Without those of CUDA it would see GPUs of other jobs.
"""


def variables_on_node(
    gpus: Sequence[int], user: int | None, began_s: float, walltime_s: float
) -> dict[str, str]:
    """Return a script's variables about its GPUs, user and times.

    `gpus`: numbers on the node. `user`: id, None for that of this process. `began_s`: seconds since
    1970. `walltime_s`: 0 for no limit.
    """
    variables = {
        "ENVIRONMENT": "BATCH",
        "SLURM_JOB_UID": str(os.getuid() if user is None else user),
        "SLURM_JOB_GID": str(os.getgid() if user is None else user),
        "SLURM_JOB_START_TIME": str(int(began_s)),
        "SLURM_NODE_ALIASES": "(null)",
        "SLURM_PRIO_PROCESS": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
    }
    if walltime_s:
        variables["SLURM_JOB_END_TIME"] = str(int(began_s + walltime_s))
    if gpus:
        variables["SLURM_GPUS_ON_NODE"] = str(len(gpus))
        variables["SLURM_JOB_GPUS"] = ",".join(str(gpu) for gpu in gpus)
    return variables


def exported_to_step(wanted: Exported | None, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a step by its `--export`; None stands for all of the script's."""
    if wanted is None:
        return dict(own)
    variables: dict[str, str] = {}
    for name, value in own.items():
        if wanted.all or name in wanted.names or name.startswith(KEPT):
            variables[name] = value
    return {**variables, **wanted.values}
