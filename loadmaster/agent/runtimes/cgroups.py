"""A control group of the kernel for each launch, which limits its memory, processes and cores.

The agent makes its groups in a group of its own, below the topmost one that it may write: as root
that is the root of the tree, which survives each restart of the agent's unit; otherwise a subtree
that systemd has delegated. Trees of both versions are used, also side by side.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from loadmaster.agent.runtimes.cgroup_files import (
    PROCESSES,
    Version,
    Version1,
    Version2,
    limit_processes,
    pids_in,
)

PROC = Path("/proc/self")

PREFIX = "loadmaster-"
"""Beginning of the name of an agent's group, which ends with its machine id."""

TRIAL = "trial"
"""Name of the group of a trial."""

TRIAL_S = 10.0
"""Longest time in seconds of a trial."""

JOIN = 'for file; do echo 0 >"$file" || exit; done'
"""Program of a trial: a process that joins groups."""

CPU_ACCOUNT = "cpuacct"
"""Controller of version 1 that counts CPU time; in version 2 every group does."""

logger = logging.getLogger(__name__)


class Resource(StrEnum):
    """Resource of a launch that a group can limit."""

    MEMORY = "memory"
    PROCESSES = "processes"
    CORES = "cores"


CONTROLLERS = {Resource.MEMORY: "memory", Resource.PROCESSES: "pids", Resource.CORES: "cpu"}
"""The kernel's controller of each resource."""


class NoCgroupsError(Exception):
    """The agent can make no groups here that limit anything; the message says why."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A mounted tree of groups: the folder of its root, and the agent's own group in it."""

    version: Version
    root: Path
    own: Path
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Base:
    """Folder of the launches' groups for one controller."""

    version: Version
    folder: Path


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits of a launch's group: bytes, processes and threads, cores; None: no limit."""

    memory_bytes: int | None = None
    processes: int | None = None
    cores: float | None = None


@dataclass(frozen=True, slots=True)
class GroupUse:
    """CPU seconds used and withheld since the group was made, and bytes of memory in use."""

    cpu_s: float
    throttled_s: float
    memory: int


class Cgroups:
    """The groups of an agent's launches, by the launches' names."""

    def __init__(self, bases: Mapping[str, Base]) -> None:
        """`bases`: folders of the groups by controller."""
        self._bases = bases
        self._leaving: set[str] = set()
        """Names of groups that could not be removed yet."""

    @property
    def limits(self) -> tuple[Resource, ...]:
        """Resources that the groups limit."""
        return tuple(resource for resource in Resource if CONTROLLERS[resource] in self._bases)

    def make(self, name: str, limits: GroupLimits) -> None:
        """Make a launch's group, or take the one that is there, and limit it. Raises OSError."""
        # 1. Somebody may have removed or changed the agent's own group meanwhile.
        for controller, base in self._bases.items():
            _make_base(base, controller)

        # 2. The group; version 2 has one folder for all controllers.
        for folder in self._folders(name):
            folder.mkdir(exist_ok=True)

        # 3. The limits.
        memory = self._bases.get("memory")
        if memory and limits.memory_bytes is not None:
            memory.version.limit_memory(memory.folder / name, limits.memory_bytes)
        pids = self._bases.get("pids")
        if pids and limits.processes is not None:
            limit_processes(pids.folder / name, limits.processes)
        if limits.cores is not None:
            self.set_cores(name, limits.cores)

    def set_cores(self, name: str, cores: float | None) -> None:
        """Limit the cores of a launch, now or while it runs; None: no limit. Raises OSError."""
        cpu = self._bases.get("cpu")
        if cpu:
            cpu.version.limit_cores(cpu.folder / name, cores)

    def cores(self, name: str) -> float | None:
        """Return the cores to which the kernel limits a launch now; None: no limit."""
        cpu = self._bases.get("cpu")
        return cpu.version.cores_limit(cpu.folder / name) if cpu else None

    def has(self, name: str, resource: Resource) -> bool:
        """Return True if a launch has a group in which the resource can be limited."""
        base = self._bases.get(CONTROLLERS[resource])
        return base is not None and (base.folder / name).is_dir()

    def entrances(self, name: str) -> list[str]:
        """Return the files by which a process joins a launch's group."""
        return [str(folder / PROCESSES) for folder in self._folders(name)]

    def oom_counters(self, name: str) -> list[str]:
        """Return the file that counts the launch's processes killed for memory, if there is one."""
        memory = self._bases.get("memory")
        if memory is None:
            return []
        return [str(memory.folder / name / memory.version.oom_file)]

    def use(self, name: str) -> GroupUse | None:
        """Return what a launch has used; None if its group does not tell CPU time and memory."""
        memory = self._bases.get("memory")
        cpu = self._bases.get("cpu")
        account = self._bases.get(CPU_ACCOUNT, cpu)
        if memory is None or cpu is None or account is None:
            return None
        in_use = memory.version.memory(memory.folder / name)
        cpu_s = account.version.cpu_s(account.folder / name)
        if in_use is None or cpu_s is None:
            return None
        return GroupUse(cpu_s, cpu.version.throttled_s(cpu.folder / name), in_use)

    def names(self) -> list[str]:
        """Return the names of all groups of launches."""
        names = set()
        for base in self._bases.values():
            for path in base.folder.iterdir():
                if path.is_dir():
                    names.add(path.name)
        return sorted(names)

    def kill(self, name: str) -> None:
        """Kill all processes of a launch, also those that hide from its guard."""
        for folder in self._folders(name):
            for pid in pids_in(folder):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def remove(self, name: str) -> None:
        """Remove the group of a launch that is over.

        Processes that are left in it are killed, and then a later call removes it.
        """
        self._leaving.add(name)
        for leaving in sorted(self._leaving):
            if self._is_removed(leaving):
                self._leaving.discard(leaving)
            else:
                self.kill(leaving)

    def _is_removed(self, name: str) -> bool:
        """Try to remove a group; return True if nothing of it is left."""
        for folder in self._folders(name):
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not any(folder.is_dir() for folder in self._folders(name))

    def close(self) -> None:
        """Remove the agent's own group if no launch has one."""
        for base in self._bases.values():
            with contextlib.suppress(OSError):
                base.folder.rmdir()

    def _folders(self, name: str) -> list[Path]:
        """Return the folders of a launch's group, each once."""
        return list(dict.fromkeys(base.folder / name for base in self._bases.values()))


def working_cgroups(machine_id: str, wanted: Collection[Resource]) -> Cgroups:
    """Return groups that limit those of the wanted resources which can be limited here, by trials.

    Raises NoCgroupsError if that is none of them.
    """
    # 1. Try each controller.
    trees = mounted_trees(PROC)
    name = PREFIX + machine_id
    bases = {}
    problems = []
    for resource in wanted:
        controller = CONTROLLERS[resource]
        try:
            bases[controller] = base_of(trees, controller, name)
        except NoCgroupsError as error:
            problems.append(f"{resource}: {error}")
    if not bases:
        raise NoCgroupsError("; ".join(problems) or "the settings ask for no limit")
    for problem in problems:
        logger.warning("the kernel does not limit jobs' %s", problem)

    # 2. The account of CPU time, where it is another controller.
    with contextlib.suppress(NoCgroupsError):
        bases[CPU_ACCOUNT] = base_of(trees, CPU_ACCOUNT, name)
    return Cgroups(bases)


def mounted_trees(proc: Path) -> list[Tree]:
    """Return the trees of groups that are mounted, version 1 first.

    `proc`: the folder of a process below /proc, whose own groups these are. Version 2 tells only
    controllers that version 1 does not hold.
    """
    # 1. Path of the process in each tree: lines `NUMBER:CONTROLLERS:PATH`, version 2 names none.
    own_paths = {}
    for line in _lines(proc / "cgroup"):
        _, names, path = line.split(":", 2)
        own_paths[names] = path

    # 2. Mounted file systems of type cgroup (version 1) and cgroup2.
    trees = []
    for line in _lines(proc / "mountinfo"):
        mounted, _, source = line.partition(" - ")
        kind, _, options = source.split(maxsplit=2)
        root_path, mount = mounted.split()[3:5]
        root = Path(mount)
        if kind == "cgroup2":
            controllers = frozenset(_words(root / "cgroup.controllers"))
            own = _folder_of(own_paths.get("", "/"), root_path, root)
            trees.append(Tree(Version2(), root, own, controllers))
        elif kind == "cgroup":
            for names, path in own_paths.items():
                controllers = frozenset(names.split(","))
                if names and controllers <= set(options.split(",")):
                    own = _folder_of(path, root_path, root)
                    trees.append(Tree(Version1(), root, own, controllers))
    return sorted(trees, key=lambda tree: tree.version.number)


def topmost_writable(tree: Tree) -> Path | None:
    """Return the topmost of the agent's own group and those above it that the agent may write.

    None if it may write none of them.
    """
    group = tree.root
    below = tree.own.relative_to(tree.root).parts
    for name in ("", *below):
        group = group / name
        may_make = os.access(group, os.W_OK | os.X_OK)
        if may_make and os.access(group / PROCESSES, os.W_OK):
            return group
    return None


def base_of(trees: Sequence[Tree], controller: str, name: str) -> Base:
    """Make the agent's group for a controller, and try it. Raises NoCgroupsError."""
    # 1. The tree of the controller, and the agent's place in it.
    tree = next((tree for tree in trees if controller in tree.controllers), None)
    if tree is None:
        raise NoCgroupsError(f"the controller {controller} is not mounted")
    top = topmost_writable(tree)
    if top is None:
        raise NoCgroupsError(f"the agent may write no group of {tree.root}")

    # 2. The agent's group, and a trial.
    base = Base(tree.version, top / name)
    try:
        _make_base(base, controller)
        _try(base.folder / TRIAL, tree.version.limit_files.get(controller, PROCESSES))
    except (OSError, subprocess.SubprocessError) as error:
        raise NoCgroupsError(str(error)) from error
    return base


def _make_base(base: Base, controller: str) -> None:
    """Make the agent's own group, or take the one that is there. Raises OSError.

    In version 2 it and the group above it hand the controller down.
    """
    base.folder.mkdir(exist_ok=True)
    if base.version.number == 2:
        for group in (base.folder.parent, base.folder):
            _hand_down(group, controller)


def _hand_down(group: Path, controller: str) -> None:
    """Let the groups in a group of version 2 use a controller. Raises OSError with the remedy."""
    try:
        (group / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        remedy = "give the agent a subgroup (DelegateSubgroup=agent)"
        raise OSError(errno.EBUSY, f"processes run in {group} itself: {remedy}") from error


def _try(group: Path, limit_file: str) -> None:
    """Make a group with the file of a limit, let a process join it, and remove it.

    Raises OSError and SubprocessError.
    """
    group.mkdir(exist_ok=True)
    try:
        if not (group / limit_file).exists():
            raise OSError(errno.ENOENT, f"{group.parent} has no {limit_file}")
        command = ["/bin/sh", "-c", JOIN, "sh", str(group / PROCESSES)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_S)
        if done.returncode:
            raise OSError(errno.EPERM, done.stderr.strip())
    finally:
        group.rmdir()


def _folder_of(path: str, mounted: str, root: Path) -> Path:
    """Return the folder of a group of a tree that is mounted at `root` from the group `mounted`.

    A group outside that part of the tree counts as its root.
    """
    try:
        return root / PurePosixPath(path).relative_to(mounted)
    except ValueError:
        return root


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file; none if it cannot be read."""
    with contextlib.suppress(OSError):
        yield from path.read_text().splitlines()


def _words(path: Path) -> list[str]:
    """Return the words in a file; none if it cannot be read."""
    with contextlib.suppress(OSError):
        return path.read_text().split()
    return []
