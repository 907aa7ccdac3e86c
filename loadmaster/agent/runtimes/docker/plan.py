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

RUN, GUARD, WORK, BIN, CHECKPOINTS = (
    f"{HOME}/{name}" for name in ("run", "guard", "work", "bin", "checkpoints")
)
"""Paths in a container: run folder, the guard's, its own, the guard, checkpoints."""

CPU_PERIOD_US = 100_000
GUARD_MEMORY_GB = 0.05
LEAST_MEMORY_GB = 0.016
"""Memory of the guard on top of the job's, and the least that the Engine takes."""

OWNER, ASSIGNMENT, FENCE, JOB = (
    f"loadmaster.{name}" for name in ("owner", "assignment", "fence", "job")
)
SHELL = ("/bin/sh", f"{BIN}/guard.sh")


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """A container as requested from the Engine; holds no secrets, as inspect shows all."""

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

    `checkpoints` and `mounted` are real paths at acceptance; with `owns_checkpoints` the folder is
    the node's own and may be given to the job's user.
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
    """Image and folders to prepare; `private` are folders of the host that no job gets."""

    run: RunId
    spec: LaunchSpec
    wanted: Wanted
    folder: Path
    owner: str
    options: DockerOptions
    private: tuple[Path, ...] = ()


def container_plan(task: Task, user: tuple[int, int], mounts: tuple[Mount, ...]) -> ContainerPlan:
    """The container of a launch with the job's `mounts`; image and entry point come later."""
    run, spec, wanted = task.run, task.spec, task.wanted
    cores = spec.cores if spec.cpu_quota is None else spec.cpu_quota
    is_limited = cores > 0 and task.options.limit_cores
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
        cpu_quota_us=max(1000, round(cores * CPU_PERIOD_US)) if is_limited else None,
        stop_timeout_s=round(wanted.grace_s) + 5,
    )


def memory_bytes(memory_gb: float) -> int | None:
    """Memory limit of a job's container, the guard included; None for a job without a limit."""
    if memory_gb <= 0:
        return None
    return round((max(memory_gb, LEAST_MEMORY_GB) + GUARD_MEMORY_GB) * GB)


def own_mounts(folder: Path, checkpoints: str, *, has_script: bool) -> tuple[Mount, ...]:
    """Mounts of every container; nothing that could prolong its lease is writable.

    A script's steps share cores and GPUs by a file.
    """
    run = folder / "run"
    mounts: tuple[Mount, ...] = (
        Mount(str(run), RUN),
        Mount(str(run / "progress.jsonl"), f"{RUN}/progress.jsonl", writable=True),
        Mount(str(folder / "guard"), GUARD, writable=True),
        Mount(str(folder / "work"), WORK, writable=True),
        Mount(str(folder / "bin"), BIN),
    )
    if has_script:
        mounts = (*mounts, Mount(str(run / "steps"), f"{RUN}/steps", writable=True))
    if checkpoints:
        mounts = (*mounts, Mount(checkpoints, CHECKPOINTS, writable=True))
    return mounts


def job_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Variables inside the container: its folder names, a home of its own."""
    inside = {"LOADMASTER_RUN_DIR": RUN}
    if "LOADMASTER_CHECKPOINT_DIR" in given:
        inside["LOADMASTER_CHECKPOINT_DIR"] = CHECKPOINTS
    return {"HOME": WORK, "USER": "job", "LOGNAME": "job", **given, **inside}


def launch_data(
    spec: LaunchSpec,
    command: Iterable[str],
    environment: Mapping[str, str],
    wanted: Wanted,
    outputs: Mapping[str, str],
) -> dict[str, Any]:
    """Instructions that guard.py reads; `outputs` are files of the container by stream."""
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
    """The script that guard.sh runs: one compound command, read whole before it is emptied.

    Of `outputs`, files of the container by stream, that of stdout takes errors too without another.
    """
    files = ""
    for stream, number in (("stdout", 1), ("stderr", 2)):
        if stream in outputs:
            path = shlex.quote(outputs[stream])
            files += f": >{path}\nexec {number}>>{path}\n"
    if set(outputs) == {"stdout"}:
        files += "exec 2>&1\n"
    exports = "".join(f"export {name}={shlex.quote(v)}\n" for name, v in environment.items())
    emptied = f": >{GUARD}/launch.sh\n: >{GUARD}/launch.json\n"
    return f"{{\n{exports}{emptied}{files}exec {shlex.join(command)}\n}}\n"
