"""The container of a launch: mounts, limits, rights. Pure."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadmaster.agent.runtimes.base import NO_LIMITS, Limits, RunId
from loadmaster.agent.runtimes.docker.options import DockerOptions
from loadmaster.agent.runtimes.limits import cores_of, memory_bytes, quota_us
from loadmaster.agent.runtimes.mounts import HOME, Mount
from loadmaster.protocol import LaunchSpec

# Folders in a container.
RUN = f"{HOME}/run"
"""Orders of the agent to the guard, such as the lease."""

GUARD = f"{HOME}/guard"
"""Files that the guard writes."""

WORK = f"{HOME}/work"
"""Home of the job."""

BIN = f"{HOME}/bin"
"""Programs of the guard."""

CHECKPOINTS = f"{HOME}/checkpoints"
"""Checkpoints of the job."""

# Labels of a container.
OWNER = "loadmaster.owner"
"""Machine id of the agent that made it."""

ASSIGNMENT = "loadmaster.assignment"
FENCE = "loadmaster.fence"
JOB = "loadmaster.job"

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
class ContainerRequest:
    """Request for a launch's container, kept in the run's folder so that a new agent can make it.

    Paths are without links, as they were at acceptance; "" for none. `checkpoints`: the job's
    folder of them. `owns_checkpoints`: that folder is the node's own and may be given to the job's
    user. `mounted`: sources of the job's mounts. `shared`: the folder of all jobs' checkpoints.
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
    """Launch whose container is to be prepared.

    `folder`: of the run, on the host. `owner`: machine id of the agent. `forbidden_folders`:
    folders of the host that no job gets.
    """

    run: RunId
    spec: LaunchSpec
    request: ContainerRequest
    folder: Path
    owner: str
    options: DockerOptions
    forbidden_folders: tuple[Path, ...] = ()


def container_plan(task: Task, user: tuple[int, int], mounts: tuple[Mount, ...]) -> ContainerPlan:
    """Return the plan of a launch's container; image, working folder and entry point come later.

    `user`: numbers of user and group; `mounts`: those that the job asks for.
    """
    run = task.run
    spec = task.spec
    request = task.request
    cores = cores_of(spec)
    cpu_quota_us = None
    if cores is not None and task.options.limit_cores:
        cpu_quota_us = quota_us(cores)
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
            *own_mounts(task.folder, request.checkpoints, has_script=bool(spec.script)),
            *mounts,
        ),
        gpus=request.gpus,
        memory_bytes=memory_bytes(spec.memory_gb),
        cpu_quota_us=cpu_quota_us,
        stop_timeout_s=round(request.grace_s) + 5,
    )


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
    request: ContainerRequest,
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
        "grace_s": request.grace_s,
        "boot_id": request.boot_id,
        "log_ends": (spec.log_head_bytes, spec.log_tail_bytes),
        **asdict(request.limits),
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
