"""Slurm's programs beside a script, and their access to the server."""

import json
from collections.abc import Mapping
from pathlib import Path

import loadmaster
from loadmaster.files import write_whole
from loadmaster.protocol import LaunchSpec
from loadmaster.slurm.programs.server import ACCESS

PACKAGES = str(Path(loadmaster.__file__).parents[1])
"""Folder from which Python imports Loadmaster."""

PROGRAMS = ("sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
"""Programs of Slurm's that a script finds, each a module of `loadmaster.slurm.programs`."""

PROGRAM = (
    "import sys; sys.path.insert(0, {!r});"
    " from loadmaster.slurm.programs.{} import main; sys.exit(main())"
)
"""Python code of a program, with a folder of packages and the program's name to fill in."""

SCRIPT = "slurm_script"
"""Name of a script's file; shells begin their messages with it."""

NO_SERVER: Mapping[str, object] = {}
"""Access to the server of an agent whose scripts may not call it."""


def write_access(folder: Path, server: Mapping[str, object], spec: LaunchSpec) -> Path | None:
    """Write how the programs of a launch reach the server, readable by its owner alone.

    Returns the file, which is to be given to the job's user; None for a launch without access.
    """
    if not spec.script_token or not server:
        return None
    path = folder / ACCESS
    write_whole(path, json.dumps({**server, "token": spec.script_token}).encode(), mode=0o600)
    return path
