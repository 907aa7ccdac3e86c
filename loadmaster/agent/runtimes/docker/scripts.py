"""A batch script in a container: its files in the run's folder, and what its image must have."""

import os
import posixpath
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from string import Template

from loadmaster.agent.runtimes.base import Launch
from loadmaster.agent.runtimes.docker.plan import BIN
from loadmaster.agent.runtimes.mounts import Mount, moved
from loadmaster.agent.runtimes.programs import (
    PACKAGES,
    PROGRAM,
    PROGRAMS,
    SCRIPT,
    write_access,
)
from loadmaster.files import write_whole
from loadmaster.protocol import LaunchSpec
from loadmaster.slurm.programs.server import FOLDER
from loadmaster.slurm.programs.srun import IMAGE, MOUNTS
from loadmaster.slurm.scripts.environment import variables_on_node
from loadmaster.slurm.scripts.script_bytes import bytes_of

SCRIPT_PATH = f"{BIN}/{SCRIPT}"
PROGRAMS_PATH = f"{BIN}/programs"
PACKAGES_PATH = f"{BIN}/packages"

START = (
    "/bin/sh",
    "-c",
    f'export SLURM_TASK_PID=$$ PATH="${FOLDER}:$PATH"; exec "$@"',
    "sh",
    SCRIPT_PATH,
)
"""Words before the script's own. The shell puts the programs before the image's own PATH."""

SHELL = "/bin/sh"
USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV = "/usr/bin/env"

NEEDED_MODULES = ("__init__.py", "version.py", "shell_words.py")
"""Modules of the package that the programs need beside those of `loadmaster.slurm`."""

_BY_PYTHON = Template(
    """#!/bin/sh
# $name by a Python of the image, 3.10 or newer.
for python in python3 python /usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python3; do
  if command -v "$$python" >/dev/null 2>&1 && "$$python" -I -S -c \\
    'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
    exec "$$python" -I -S -c $code "$$@"
  fi
done
"""
)

_WITHOUT_PYTHON = Template(
    """echo "$name: error: needs Python 3.10 in the image; add it, or call $name elsewhere" >&2
exit 1
"""
)

_SRUN_WITHOUT_PYTHON = """\
# Without Python: one task, with the options that change nothing for it.
while [ $# -gt 0 ]; do
  case $1 in
    -n1 | -N1 | --ntasks=1 | --nodes=1 | --ntasks-per-node=1) shift ;;
    -n | --ntasks | -N | --nodes | --ntasks-per-node) [ "$2" = 1 ] || break; shift 2 ;;
    --container-*=* | --no-container-* | --exact | --overlap | -u | --unbuffered | --mpi=*) shift ;;
    --cpus-per-task=* | --cpu-bind=* | --gpus=* | --gres=* | --gpus-per-task=* | -c[0-9]*) shift ;;
    --container-image | --container-mounts | --container-name | --container-workdir) shift 2 ;;
    -c | -G | --cpus-per-task | --cpu-bind | --gpus | --gres | --gpus-per-task | --mpi) shift 2 ;;
    -*) break ;;
    *)
      [ "${SLURM_NTASKS:-1}" = 1 ] || break
      export SLURM_STEP_ID=0 SLURM_STEPID=0
      exec "$@"
      ;;
  esac
done
echo "srun: error: $1: only one task without this option runs without Python 3.10 in the image" >&2
exit 1
"""


def write_script(
    folder: Path, launch: Launch, user: int | None, server: Mapping[str, object], began_s: float
) -> dict[str, str]:
    """Write a script with its programs into a run's folder; return the script's variables.

    `user`: id of the container's user, None if the image decides.
    """
    spec = launch.spec

    # 1. The script, the packages of the programs, and the programs, which the image's users read.
    write_whole(folder / "bin" / SCRIPT, bytes_of(spec.script), durable=True, mode=0o755)
    for path in _modules():
        copy = folder / "bin" / "packages" / path.relative_to(PACKAGES)
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_whole(copy, path.read_bytes(), mode=0o644)
    programs = folder / "bin" / "programs"
    programs.mkdir(exist_ok=True)
    for name in PROGRAMS:
        write_whole(programs / name, program_text(name).encode(), mode=0o755)
    _open_folders(folder / "bin")

    # 2. The access to the server, and the account of the steps, which the job's user gets.
    write_access(programs, server, spec)
    (folder / "run" / "steps").touch(0o600)

    # 3. The variables.
    variables = variables_on_node(launch.gpu_numbers, user, began_s, spec.walltime_s)
    if user is None:
        del variables["SLURM_JOB_UID"]
        del variables["SLURM_JOB_GID"]
    return {**variables, FOLDER: PROGRAMS_PATH, IMAGE: spec.image, MOUNTS: ",".join(spec.mounts)}


def _modules() -> Iterator[Path]:
    package = Path(PACKAGES) / "loadmaster"
    for name in NEEDED_MODULES:
        yield package / name
    yield from sorted((package / "slurm").rglob("*.py"))


def _open_folders(top: Path) -> None:
    """Let every user enter these folders, whatever the agent's umask."""
    for folder, _, _ in os.walk(top):
        Path(folder).chmod(0o755)


def program_text(name: str) -> str:
    """Return a program as a shell script: by Python, or what is possible without."""
    code = shlex.quote(PROGRAM.format(PACKAGES_PATH, name))
    text = _BY_PYTHON.substitute(name=name, code=code)
    if name == "srun":
        return text + _SRUN_WITHOUT_PYTHON
    return text + _WITHOUT_PYTHON.substitute(name=name)


# -- the image


def interpreters(script: str, path: str) -> tuple[str, list[str]]:
    """Return the interpreter that a script's first line names, and files of which one must exist.

    `path`: the image's PATH, in which `env` looks.
    """
    first_line, _, _ = script.partition("\n")
    words = first_line.removeprefix("#!").split()
    if not words:
        return SHELL, [SHELL]
    if words[0] != ENV:
        return words[0], [words[0]]
    names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not names or "/" in names[0]:
        return ENV, [ENV]
    return names[0], [f"{folder}/{names[0]}" for folder in (path or USUAL_PATH).split(":")]


# -- output files


def outputs_in_container(spec: LaunchSpec) -> dict[str, str]:
    """Return the job's output files by stream, as the container sees them.

    A shared file is that of stdout.
    """
    outputs: dict[str, str] = {}
    for stream, name in (("stdout", spec.output), ("stderr", spec.error_output)):
        if name:
            outputs[stream] = posixpath.normpath(posixpath.join("/", spec.folder, name))
    if outputs.get("stderr") == outputs.get("stdout"):
        outputs.pop("stderr", None)
    return outputs


def outputs_on_host(outputs: Mapping[str, str], mounts: Sequence[Mount]) -> dict[str, str]:
    """Return where a container's output files lie on the node.

    Raises ValueError for one that no writable mount holds, or that is behind a link.
    """
    return {stream: _on_host(path, mounts) for stream, path in outputs.items()}


def _on_host(path: str, mounts: Iterable[Mount]) -> str:
    file = PurePosixPath(path)
    holding = [mount for mount in mounts if file.is_relative_to(mount.target)]
    # Of mounts within each other the inner one holds.
    inner = max(holding, key=lambda mount: len(mount.target), default=None)
    if inner is None or not inner.writable:
        remedy = "mount its folder, or leave the file out: the log has the output"
        raise ValueError(f"output: {path} is in no folder that the job may write; {remedy}")
    on_host = Path(inner.source) / file.relative_to(inner.target)
    if moved([str(on_host.parent)]):
        raise ValueError(f"output: {path} is behind a link; name the folder that it leads to")
    return str(on_host)
