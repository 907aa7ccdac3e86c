"""Isolation of jobs run as processes: as root a user for each team, and a bubblewrap sandbox.

A sandboxed job sees the system's programs (read-only), the folders that the operator lists, and
its own part of the agent's folder: `work`, `/tmp`, checkpoints, and (read-only) orders and term.
"""

import contextlib
import errno
import grp
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import loadmaster
from loadmaster.agent.runtimes.base import GB, Launch
from loadmaster.agent.runtimes.mounts import (
    AllowedMount,
    MountRules,
    checkpoint_problem,
    make_folder,
)
from loadmaster.files import private_folder
from loadmaster.protocol import ReasonClass

SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/sys",
    "/nix/store", "/run/nvidia-persistenced",
)  # fmt: skip  # a long list of names
"""Folders of the system that every sandbox shows, read-only."""

SETTINGS = "/etc/loadmaster"
"""Folder of the system that no job sees: settings of agent and server lie there."""

RESOLVER = Path("/etc/resolv.conf")
"""File of name servers, often a link to one in /run."""

SHM = "/dev/shm"  # noqa: S108  # no file of ours
"""Folder of shared memory."""

DEV = Path("/dev")
DEVICES = ("nvidia*", "dri", "kfd", "accel", "infiniband")
"""Patterns of device files that jobs may use besides those of every sandbox."""

GPU = re.compile(r"nvidia\d+")
"""Names of GPUs' device files: a job sees only those of its own GPUs."""

GROUPS = ("video", "render")
"""Groups of the system whose members may use these devices."""

ORDERS = "run"
"""Folder of lease, orders and term in the folder of an isolated run: the job cannot write there."""

OWN_FOLDERS = ("work", "tmp")
OWN_FILES = (f"{ORDERS}/progress.jsonl", f"{ORDERS}/steps")
"""Folders and files of its run that the job may write; `steps`: the account of its steps."""

TRIAL_S = 10.0
"""Longest time in seconds of a trial, and of a question to bubblewrap."""

PASSING = (
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT,
    errno.ETIMEDOUT,
)  # fmt: skip  # a long list of names
"""Errors of a trial that may pass, so they do not show that isolation is impossible here."""

BUBBLEWRAP = "bubblewrap"
USERS = "users"
"""Kinds of isolation: a sandbox, and the weaker one by a user for each team alone."""

TRIAL = """
cd "$0" && : >trial || exit
[ -x "$1" ] || { echo "jobs of other users cannot reach $1" >&2; exit 1; }
"""
"""Program of a trial: a job can work in its folder and find the agent's Python."""

TO_FILES = """
out=$1 err=$2; shift 2
if [ -n "$err" ]; then : >"$err" || exit; fi
if [ -n "$out" ]; then : >"$out" || exit; exec >>"$out"; [ -n "$err" ] || exec 2>&1; fi
if [ -n "$err" ]; then exec 2>>"$err"; fi
exec "$@"
"""
"""Program that opens the files a job names for its output: with the job's rights, in its sandbox.
"""


logger = logging.getLogger(__name__)


class NoIsolationError(Exception):
    """No job can be isolated on this machine; the message says why."""


class UndecidedError(NoIsolationError):
    """No trial can be made just now; the message says why."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """The way in which a node's jobs are kept apart.

    `state`: the agent's folder. `users`: the teams' users by team number; None unless the agent is
    root. `program`: path of bubblewrap; "" without it, and then jobs see the names of each other's
    files. `closes_namespaces`: jobs cannot make user namespaces, in which they could mount memory.
    """

    state: Path
    users: range | None = None
    program: str = ""
    mounts: tuple[AllowedMount, ...] = ()
    closes_namespaces: bool = False

    @property
    def kind(self) -> str:
        """BUBBLEWRAP or USERS."""
        return BUBBLEWRAP if self.program else USERS

    def user_of(self, team: int) -> int | None:
        """Return the user of a team's jobs; None: the agent's own."""
        return None if self.users is None else self.users[team]

    def open_way(self) -> None:
        """Let the teams' users pass through the agent's folder, but not list its content."""
        mode = 0o700 if self.users is None else 0o711
        for path in (self.state, self.state / "runs"):
            path.mkdir(mode=0o700, exist_ok=True)
            path.chmod(mode)

    def problem(self) -> str:
        """Try to isolate a command; return why that fails here, "" if it works.

        Raises OSError if the trial cannot be made, for want of room, time or processes.
        """
        self.open_way()
        user = None if self.users is None else self.users[1]
        with tempfile.TemporaryDirectory(prefix=".trial", dir=self.state / "runs") as name:
            folder = Path(name)
            make_own(folder, user)
            command = ["/bin/sh", "-c", TRIAL, str(folder / "work"), sys.executable]
            if self.program:
                command = [self.program, *self.sandbox_arguments(folder), "--", *command]
            try:
                return _trial_failure(command, user)
            except OSError as error:
                if error.errno in PASSING:
                    raise
                return str(error)

    def objection(
        self, launch: Launch, folder: Path, outputs: Iterable[str]
    ) -> tuple[ReasonClass, str] | None:
        """Return why this node cannot run a launch, with the class of the reason; None if it can.

        `folder`: the run's folder; `outputs`: files that the job names for its output.
        """
        # 1. The job's user.
        spec = launch.spec
        if self.users is not None and not 0 < spec.team < len(self.users):
            text = "no user for the team of this job: widen --users, or upgrade the server"
            return ReasonClass.NODE, text

        # 2. The folder of its checkpoints.
        rules = MountRules(self.mounts, (self.state, Path(SETTINGS)), launch.checkpoints)
        place = launch.environment.get("LOADMASTER_CHECKPOINT_DIR")
        if place:
            problem = checkpoint_problem(place, spec.job, folder / "checkpoints", rules)
            if problem:
                return ReasonClass.USER, problem

        # 3. Its working folder, and the files for its output.
        if self.program and spec.folder and not _is_shown(spec.folder, rules):
            return ReasonClass.USER, _not_shown("folder", spec.folder)
        work = (folder / "work").resolve()
        for path in outputs:
            if not Path(path).is_relative_to(work) and not _is_shown(path, rules, writable=True):
                return ReasonClass.USER, _not_shown("output", f"{path} to write to")
        return None

    def lay_out(self, launch: Launch, folder: Path) -> None:
        """Make the folders of a run and of its checkpoints, and give the job its own.

        A folder of checkpoints in which others may write is left to the job to make.
        """
        user = self.user_of(launch.spec.team)
        make_own(folder, user)
        if owns_checkpoints(launch, folder):
            place = Path(launch.environment["LOADMASTER_CHECKPOINT_DIR"]).resolve()
            make_folder(place)
            if user is not None:
                _let_through(launch.checkpoints)
                _give_all(place, user)

    def launch_data(self, launch: Launch, folder: Path, data: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the guard's `launch.json` that isolation adds or replaces.

        `data`: the fields of a job that is not isolated.
        """
        # 1. Orders lie where the job cannot write. The job itself opens its files for output.
        home = {"HOME": str(folder / "work"), "USER": "job", "LOGNAME": "job"}
        changes: dict[str, Any] = {
            "orders": str(folder / ORDERS),
            "environment": home | data["environment"],
            "argv": opening_files(data["argv"], data["outputs"]),
            "outputs": {},
        }

        # 2. The team's user.
        user = self.user_of(launch.spec.team)
        if user is not None:
            changes["user"] = user
            changes["groups"] = _device_groups()

        # 3. The sandbox.
        if self.program:
            checkpoints = ""
            if owns_checkpoints(launch, folder):
                checkpoints = launch.environment["LOADMASTER_CHECKPOINT_DIR"]
            arguments = self.sandbox_arguments(
                folder,
                checkpoints,
                all_checkpoints=launch.checkpoints,
                gpus=launch.gpu_files,
                memory_gb=launch.spec.memory_gb,
            )
            arguments += ["--chdir", data["cwd"]]
            changes["sandbox"] = {"program": self.program, "words": arguments}
        return changes

    def sandbox_arguments(
        self,
        folder: Path,
        checkpoints: str = "",
        *,
        all_checkpoints: Path | None = None,
        gpus: Collection[str] = (),
        memory_gb: float = 0.0,
    ) -> list[str]:
        """Return bubblewrap's arguments for a run; each mount covers earlier ones at its place.

        `checkpoints`: the job's own folder of them, "" for none; `all_checkpoints`: the one of all
        jobs, which is hidden; `gpus`: device files of the job's GPUs; `memory_gb`: most memory of
        files in SHM.
        """
        # 1. Namespaces, and the kernel's file systems. Files in memory can be written in SHM alone.
        arguments = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--die-with-parent"]
        if self.closes_namespaces:
            arguments.append("--disable-userns")
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        if memory_gb and _knows(self.program, "--size"):
            arguments += ["--size", str(ceil(memory_gb * GB))]
        arguments += ["--tmpfs", SHM]
        for place in ("/tmp", "/var/tmp"):  # noqa: S108  # the job's own
            arguments += ["--bind", str(folder / "tmp"), place]

        # 2. Devices, and of the GPUs the job's own.
        for pattern in DEVICES:
            for device in DEV.glob(pattern):
                inside = f"/dev/{device.name}"
                if inside in gpus or not GPU.fullmatch(device.name):
                    arguments += ["--dev-bind-try", str(device), inside]

        # 3. The system, and the folders that the operator lists.
        shown = [*map(Path, SYSTEM), *_folders_of_programs()]
        for path in shown:
            arguments += ["--ro-bind-try", str(path), str(path)]
        for mount in self.mounts:
            shown.append(mount.path)
            option = "--bind-try" if mount.writable else "--ro-bind-try"
            arguments += [option, str(mount.path), str(mount.path)]

        # 4. Empty folders over those that no job may see.
        private = [self.state, Path(SETTINGS)]
        if all_checkpoints:
            private.append(all_checkpoints)
        covered: list[str] = []
        for path in private:
            covered += _places_shown(path, shown)
        for place in covered:
            arguments += ["--tmpfs", place]

        # 5. The job's own files, at the same places as outside.
        for name in (ORDERS, "bin", "slurm_script"):
            arguments += ["--ro-bind-try", str(folder / name), str(folder / name)]
        for name in (*OWN_FOLDERS, *OWN_FILES):
            arguments += ["--bind", str(folder / name), str(folder / name)]
        if checkpoints:
            arguments += ["--bind", checkpoints, checkpoints]

        # 6. All other file systems in memory become read-only.
        for place in ("/", "/dev", *covered):
            arguments += ["--remount-ro", place]
        return arguments


def working_isolation(
    state: Path,
    users: range | None,
    mounts: tuple[AllowedMount, ...] = (),
    before: str | None = None,
) -> Isolation:
    """Return the best isolation that works here by a trial, never a weaker kind than `before`.

    `before`: the kind of this node's earlier jobs, some of which may still run. That kind is used
    if no trial can be made. Raises UndecidedError if no trial can be made just now and there was
    no isolation before, NoIsolationError if nothing works.
    """
    # 1. The candidates, best first.
    program = shutil.which("bwrap") or ""
    candidates = []
    problems = []
    if program:
        candidates.append(Isolation(state, users, program, mounts))
        if _knows(program, "--disable-userns"):
            candidates.insert(0, replace(candidates[0], closes_namespaces=True))
    else:
        problems.append("bubblewrap (bwrap) is not installed")
    if users is not None and before != BUBBLEWRAP:
        candidates.append(Isolation(state, users, "", mounts))

    # 2. The first that works.
    for isolation in candidates:
        try:
            problem = isolation.problem()
        except OSError as error:
            problem = f"the trial of {isolation.kind} cannot be made: {error}"
            same_kind = [candidate for candidate in candidates if candidate.kind == before]
            if same_kind:
                logger.warning("%s; %s worked before", problem, before)
                return same_kind[0]
            if error.errno in PASSING:
                raise UndecidedError(problem) from error
        if not problem:
            _warn_of_weakness(isolation, problems)
            return isolation
        problems.append(problem)
    private_folder(state)
    raise NoIsolationError("; ".join(dict.fromkeys(problems)))


def _warn_of_weakness(isolation: Isolation, problems: Sequence[str]) -> None:
    """Log how an isolation is weaker than the best one; `problems`: those of better ones."""
    if not isolation.program and problems:
        logger.warning("jobs are isolated by %s only: %s", USERS, problems[0])
    elif isolation.program and not isolation.closes_namespaces:
        why = problems[0] if problems else "it takes bubblewrap 0.8 or newer"
        logger.warning("jobs can make user namespaces of their own: %s", why)


@cache
def _knows(program: str, option: str) -> bool:
    """Return True if this bubblewrap knows an option: `--size` came with 0.7, others with 0.8."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([program, "--help"], capture_output=True, timeout=TRIAL_S)
        return option.encode() in done.stdout.split()
    return False


def _trial_failure(command: list[str], user: int | None) -> str:
    """Run the command of a trial; return its error output if it fails, "" if it succeeds.

    Raises OSError if it cannot be started, does not end in time, or fails for a PASSING reason.
    """
    # 1. Run it, as another user if one is given.
    as_user: Any = {}
    if user is not None:
        as_user = {"user": user, "group": user, "extra_groups": []}
    with subprocess.Popen(
        command,
        **as_user,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={},
        start_new_session=True,
    ) as trial:
        try:
            _, errors = trial.communicate(timeout=TRIAL_S)
        except subprocess.TimeoutExpired:
            os.killpg(trial.pid, signal.SIGKILL)
            raise TimeoutError(errno.ETIMEDOUT, f"it took more than {TRIAL_S:.0f} s") from None
    if trial.returncode == 0:
        return ""

    # 2. Tell reasons that pass from others. Where users may have no namespaces, the kernel says
    # that there is no space for one, and that does not pass.
    message = errors.strip()
    for number in PASSING:
        is_of_namespaces = number == errno.ENOSPC and "namespace" in message
        if os.strerror(number) in message and not is_of_namespaces:
            raise OSError(number, message)
    return message or "the trial failed"


def owns_checkpoints(launch: Launch, folder: Path) -> bool:
    """Return True if no other job can write where this one has its folder of checkpoints."""
    place = launch.environment.get("LOADMASTER_CHECKPOINT_DIR")
    if not place:
        return False
    parent = Path(place).resolve().parent
    is_in_shared = launch.checkpoints is not None and parent == launch.checkpoints.resolve()
    return is_in_shared or parent == folder.resolve()


def _is_shown(path: str, rules: MountRules, *, writable: bool = False) -> bool:
    """Return True if a sandbox shows a path, its links followed; `writable`: to write to."""
    real = Path(path).resolve()
    mounts = [mount for mount in rules.allowed if mount.writable or not writable]
    is_below = any(real.is_relative_to(mount.path) for mount in mounts)
    return is_below and not rules.is_private(real)


def _not_shown(field: str, path: str) -> str:
    """Return the objection to a path that a field of the specification names."""
    remedy = "ask its operator to list it (--mounts), or leave it out"
    return f"{field}: this node does not show its jobs {path}; {remedy}"


def make_own(folder: Path, user: int | None) -> None:
    """Make the content of a run's folder that an isolated job sees, and give it its own part."""
    private_folder(folder)
    for name in (ORDERS, "bin"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name).chmod(0o755)
    for name in OWN_FOLDERS:
        private_folder(folder / name)
    for name in OWN_FILES:
        (folder / name).touch(0o600)
    if user is not None:
        for name in (*OWN_FOLDERS, *OWN_FILES):
            os.chown(folder / name, user, user, follow_symlinks=False)
        os.chown(folder, -1, user)
        folder.chmod(0o710)


def _let_through(folder: Path | None) -> None:
    """Let other users pass through a folder of the agent's user, but not list its content."""
    if folder and folder.exists() and folder.stat().st_uid == os.getuid():
        folder.chmod(folder.stat().st_mode | 0o011)


def _give_all(folder: Path, user: int) -> None:
    """Give a folder to a user, with the files that an agent without users had left there."""
    if folder.stat().st_uid == user:
        return
    for _, folders, files, here in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, user, user, dir_fd=here, follow_symlinks=False)
    os.chown(folder, user, user, follow_symlinks=False)
    folder.chmod(0o700)


def opening_files(argv: list[str], outputs: dict[str, str]) -> list[str]:
    """Return a command that opens these files for its output (by stream), then runs `argv`."""
    if not outputs:
        return argv
    stdout = outputs.get("stdout", "")
    stderr = outputs.get("stderr", "")
    return ["/bin/sh", "-c", TO_FILES, "sh", stdout, stderr, *argv]


def _device_groups() -> list[int]:
    """Return the ids of GROUPS on this machine."""
    return [group.gr_gid for group in grp.getgrall() if group.gr_name in GROUPS]


def _folders_of_programs() -> list[Path]:
    """Return paths that jobs use outside SYSTEM: Python, this package, PYTHONPATH, RESOLVER."""
    names = [sys.prefix, sys.base_prefix, str(Path(loadmaster.__file__).parent)]
    names.append(str(RESOLVER.resolve()))
    for name in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if name:
            names.append(name)
    paths = dict.fromkeys(Path(name).absolute() for name in names)
    return [path for path in paths if not any(path.is_relative_to(one) for one in SYSTEM)]


def _places_shown(folder: Path, shown: Iterable[Path]) -> list[str]:
    """Return the paths at which a sandbox would show a folder.

    `shown`: paths that it shows. A folder below one that is a link has a path of its own there.
    """
    if not folder.is_dir():
        return []
    real = folder.resolve()
    places = set()
    for path in shown:
        if real.is_relative_to(path.resolve()):
            places.add(str(path / real.relative_to(path.resolve())))
    return sorted(places)
