"""The container of a launch: mounts, limits, rights. Pure."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadmaster.agent.runtimes.base import GB, NO_LIMITS, Limits, RunId
from loadmaster.agent.runtimes.docker.options import DockerOptions
from loadmaster.agent.runtimes.mounts import HOME, Mount
from loadmaster.protocol import LaunchSpec

RUN = f"{HOME}/run"
GUARD = f"{HOME}/guard"
WORK = f"{HOME}/work"
BIN = f"{HOME}/bin"
CHECKPOINTS = f"{HOME}/checkpoints"
"""Folders in a container: orders; the guard's files; the job's home; the guard's program;
checkpoints."""

CPU_PERIOD_US = 100_000
"""Microseconds of the period for which a container's CPU quota holds."""

GUARD_MEMORY_GB = 0.05
"""Memory of the guard, on top of the job's."""

LEAST_MEMORY_GB = 0.016
"""Least memory of a job that the Engine can limit a container to."""

OWNER = "loadmaster.owner"
ASSIGNMENT = "loadmaster.assignment"
FENCE = "loadmaster.fence"
JOB = "loadmaster.job"
"""Labels of a container; its owner is the agent's machine id."""

SHELL = ("/bin/sh", f"{BIN}/guard.sh")
"""Command that starts the guard of an image with a shell."""


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """A container to request from the Engine. It holds no secrets: `docker inspect` shows all."""

    name: str
    image: str
    entrypoint: tuple[str, ...]
    user: str
    working_dir: str
    labels: dict[str, str]
    mounts: tuple[Mount, ...]
    environment: dict[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    memory_bytes: int | None = None
    cpu_quota_us: int | None = None
    stop_timeout_s: int = 60


@dataclass(frozen=True, slots=True)
class Wanted:
    """Properties of a launch that shape its container, kept in the run's folder for restarts.

    `checkpoints` (the job's folder of them), `shared` (the folder of all jobs' checkpoints) and
    `mounted` (sources of the job's mounts) are real paths at acceptance, "" for none. With
    `owns_checkpoints` the folder is the node's own and may be given to the job's user.
    """

    grace_s: float
    boot_id: str
    gpus: tuple[str, ...] = ()
    checkpoints: str = ""
    owns_checkpoints: bool = False
    mounted: tuple[str, ...] = ()
    shared: str = ""
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class Task:
    """Launch whose container is to be prepared; `private`: folders of the host that no job gets."""

    run: RunId
    spec: LaunchSpec
    wanted: Wanted
    folder: Path
    owner: str
    options: DockerOptions
    private: tuple[Path, ...] = ()


def container_plan(task: Task, user: tuple[int, int], mounts: tuple[Mount, ...]) -> ContainerPlan:
    """Return the plan of a launch's container; image, working folder and entry point come later.

    `user`: numbers of user and group; `mounts`: those that the job asks for.
    """
    run = task.run
    spec = task.spec
    wanted = task.wanted
    cores = spec.cores if spec.cpu_quota is None else spec.cpu_quota
    cpu_quota_us = None
    if cores > 0 and task.options.limit_cores:
        cpu_quota_us = max(1000, round(cores * CPU_PERIOD_US))
    return ContainerPlan(
        name=run.name,
        image="",
        entrypoint=(),
        user=f"{user[0]}:{user[1]}",
        working_dir="",
        labels={
            OWNER: task.owner,
            ASSIGNMENT: run.assignment,
            FENCE: str(run.fence),
            JOB: spec.job,
        },
        mounts=(
            *own_mounts(task.folder, wanted.checkpoints, has_script=bool(spec.script)),
            *mounts,
        ),
        gpus=wanted.gpus,
        memory_bytes=memory_bytes(spec.memory_gb),
        cpu_quota_us=cpu_quota_us,
        stop_timeout_s=round(wanted.grace_s) + 5,
    )


def memory_bytes(memory_gb: float) -> int | None:
    """Return the bytes that a job's container may use, the guard included; None: no limit."""
    if memory_gb <= 0:
        return None
    return round((max(memory_gb, LEAST_MEMORY_GB) + GUARD_MEMORY_GB) * GB)


def own_mounts(folder: Path, checkpoints: str, *, has_script: bool) -> tuple[Mount, ...]:
    """Return the mounts of every container; no file that could prolong its lease is writable.

    A script's steps share cores and GPUs by a file.
    """
    run = folder / "run"
    mounts = [
        Mount(str(run), RUN),
        Mount(str(run / "progress.jsonl"), f"{RUN}/progress.jsonl", writable=True),
        Mount(str(folder / "guard"), GUARD, writable=True),
        Mount(str(folder / "work"), WORK, writable=True),
        Mount(str(folder / "bin"), BIN),
    ]
    if has_script:
        mounts.append(Mount(str(run / "steps"), f"{RUN}/steps", writable=True))
    if checkpoints:
        mounts.append(Mount(checkpoints, CHECKPOINTS, writable=True))
    return tuple(mounts)


def job_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a launch's variables with the folders' names inside the container, and a home."""
    folders = {"LOADMASTER_RUN_DIR": RUN}
    if "LOADMASTER_CHECKPOINT_DIR" in environment:
        folders["LOADMASTER_CHECKPOINT_DIR"] = CHECKPOINTS
    return {"HOME": WORK, "USER": "job", "LOGNAME": "job", **environment, **folders}


def launch_data(
    spec: LaunchSpec,
    command: Iterable[str],
    environment: Mapping[str, str],
    wanted: Wanted,
    outputs: Mapping[str, str],
) -> dict[str, Any]:
    """Return the content of `launch.json`, which guard.py reads.

    `outputs`: files of the container by stream.
    """
    return {
        "argv": list(command),
        "outputs": dict(outputs),
        "environment": dict(environment),
        "cwd": ".",
        "grace_s": wanted.grace_s,
        "boot_id": wanted.boot_id,
        "log_ends": (spec.log_head_bytes, spec.log_tail_bytes),
        **asdict(wanted.limits),
        "orders": RUN,
        "container": True,
    }


def launch_script(
    command: Iterable[str], environment: Mapping[str, str], outputs: Mapping[str, str]
) -> str:
    """Return the script that guard.sh runs in place of `launch.json`.

    It empties itself, as it holds secrets. The shell has read it whole by then: it is one compound
    command. `outputs`: files of the container by stream; that of stdout takes errors too if stderr
    has none.
    """
    lines = ["{"]
    for name, value in environment.items():
        lines.append(f"export {name}={shlex.quote(value)}")
    lines.append(f": >{GUARD}/launch.sh")
    lines.append(f": >{GUARD}/launch.json")
    for stream, number in (("stdout", 1), ("stderr", 2)):
        if stream in outputs:
            path = shlex.quote(outputs[stream])
            lines.append(f": >{path}")
            lines.append(f"exec {number}>>{path}")
    if set(outputs) == {"stdout"}:
        lines.append("exec 2>&1")
    lines.append(f"exec {shlex.join(command)}")
    lines.append("}")
    return "\n".join(lines) + "\n"
