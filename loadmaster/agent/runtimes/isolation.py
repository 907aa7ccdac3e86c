"""Isolation of jobs run as processes: as root a user for each team, and a bubblewrap sandbox.

A sandboxed job sees the system's programs read-only, the folders that the operator lists, and of
the agent's folder what is its own: `work`, `/tmp`, its checkpoints, and read-only orders and term.
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
)  # fmt: skip
SETTINGS = "/etc/loadmaster"
"""Folder of the system that no job sees: settings of agent and server lie there."""

RESOLVER = Path("/etc/resolv.conf")
"""File of name servers, often a link to one in /run."""

SHM = "/dev/shm"  # noqa: S108  # shared memory
DEV = Path("/dev")
DEVICES = ("nvidia*", "dri", "kfd", "accel", "infiniband")
"""Devices of a node that jobs may use besides those of every sandbox."""

GPU = re.compile(r"nvidia\d+")
"""Devices that only jobs see to which they were given."""

GROUPS = ("video", "render")
"""Groups of those devices."""

ORDERS = "run"
"""Folder of lease, orders and term in the folder of an isolated run: the job cannot write there."""

OWN_FOLDERS = ("work", "tmp")
OWN_FILES = (f"{ORDERS}/progress.jsonl", f"{ORDERS}/steps")
"""Parts of its run's folder that the job may write; `steps`: the account of its steps."""

TRIAL_S = 10.0

PASSING = (
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT,
    errno.ETIMEDOUT,
)  # fmt: skip
"""Errors of a trial that say nothing of what the machine can do."""

BUBBLEWRAP, USERS = "bubblewrap", "users"
"""Kinds of isolation; with users alone jobs are kept apart less."""

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
    """For now no trial can be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """How a node's jobs are kept apart.

    `users` are those of the teams by their numbers, where the agent is root; `program` is
    bubblewrap, or empty: then jobs of different users see each other's names alone. If it
    `closes_namespaces`, jobs make no user namespaces, in which they could mount memory.
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
        """User of a team's jobs; None: the agent's own."""
        return None if self.users is None else self.users[team]

    def objection(
        self, launch: Launch, folder: Path, outputs: Iterable[str]
    ) -> tuple[ReasonClass, str] | None:
        """Reason to refuse the launch whose run has this folder, or None."""
        spec, users = launch.spec, self.users
        if users is not None and not 0 < spec.team < len(users):
            text = "no user for the team of this job: widen --users, or upgrade the server"
            return ReasonClass.NODE, text
        rules = MountRules(self.mounts, (self.state, Path(SETTINGS)), launch.checkpoints)
        problem = ""
        if place := launch.environment.get("LOADMASTER_CHECKPOINT_DIR"):
            problem = checkpoint_problem(place, spec.job, folder / "checkpoints", rules)
        if self.program and spec.folder and not _is_shown(spec.folder, rules):
            problem = problem or _unseen("folder", spec.folder)
        for path in outputs:
            own = Path(path).is_relative_to((folder / "work").resolve())
            if not own and not _is_shown(path, rules, writable=True):
                problem = problem or _unseen("output", f"{path} to write to")
        return (ReasonClass.USER, problem) if problem else None

    def lay_out(self, launch: Launch, folder: Path) -> None:
        """Make the folders of a run, its checkpoints too, and give the job its own.

        Where others may write, a job makes its folder of checkpoints itself.
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
        """Changes to `data` for the guard, none for a launch that is not isolated."""
        home = {"HOME": str(folder / "work"), "USER": "job", "LOGNAME": "job"}
        own: dict[str, Any] = {
            "orders": str(folder / ORDERS),
            "environment": home | data["environment"],
            "argv": to_files(data["argv"], data["outputs"]),
            "outputs": {},
        }
        if (user := self.user_of(launch.spec.team)) is not None:
            own |= {"user": user, "groups": _groups()}
        if self.program:
            is_own = owns_checkpoints(launch, folder)
            place = launch.environment["LOADMASTER_CHECKPOINT_DIR"] if is_own else ""
            hidden = [launch.checkpoints] if launch.checkpoints else []
            words = self.words(folder, place, hidden, launch.gpu_files, launch.spec.memory_gb)
            words += ["--chdir", data["cwd"]]
            own["sandbox"] = {"program": self.program, "words": words}
        return own

    def words(
        self,
        folder: Path,
        checkpoints: str = "",
        hidden: Sequence[Path] = (),
        gpus: Collection[str] = (),
        memory_gb: float = 0.0,
    ) -> list[str]:
        """Words for bubblewrap: what the job of a run sees. Later ones cover earlier ones.

        Files in memory can be written in SHM alone, up to `memory_gb`.
        """
        seen = [*map(Path, SYSTEM), *_used()]
        words = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--die-with-parent"]
        if self.closes_namespaces:
            words.append("--disable-userns")
        words += ["--proc", "/proc", "--dev", "/dev"]
        if memory_gb and _knows(self.program, "--size"):
            words += ["--size", str(ceil(memory_gb * GB))]
        words += ["--tmpfs", SHM]
        for place in ("/tmp", "/var/tmp"):  # noqa: S108  # the job's own
            words += ["--bind", str(folder / "tmp"), place]
        for pattern in DEVICES:
            for device in DEV.glob(pattern):
                own = f"/dev/{device.name}"
                if own in gpus or not GPU.fullmatch(device.name):
                    words += ["--dev-bind-try", str(device), own]
        words += [word for path in seen for word in ("--ro-bind-try", str(path), str(path))]
        for mount in self.mounts:
            how = "--bind-try" if mount.writable else "--ro-bind-try"
            words += [how, str(mount.path), str(mount.path)]
        shown = [*seen, *(mount.path for mount in self.mounts)]
        private = (self.state, Path(SETTINGS), *hidden)
        places = [place for path in private for place in _places(path, shown)]
        words += [word for place in places for word in ("--tmpfs", place)]
        words += _own_words(folder, checkpoints)
        return [
            *words,
            *(word for place in ("/", "/dev", *places) for word in ("--remount-ro", place)),
        ]

    def problem(self) -> str:
        """Reason why no job can be isolated so, found by a trial; empty if one can.

        Raises OSError if the trial cannot be made, for want of room, time or processes.
        """
        runs = self.state / "runs"
        self.open_way()
        user = None if self.users is None else self.users[1]
        with tempfile.TemporaryDirectory(prefix=".trial", dir=runs) as name:
            folder = Path(name)
            make_own(folder, user)
            sandbox = [self.program, *self.words(folder), "--"] if self.program else []
            command = [*sandbox, "/bin/sh", "-c", TRIAL, str(folder / "work"), sys.executable]
            try:
                return _failure(command, user)
            except OSError as error:
                if error.errno in PASSING:
                    raise
                return str(error)

    def open_way(self) -> None:
        """Let users of teams pass through the agent's folder, without seeing what is in it."""
        mode = 0o700 if self.users is None else 0o711
        for path in (self.state, self.state / "runs"):
            path.mkdir(mode=0o700, exist_ok=True)
            path.chmod(mode)


def owns_checkpoints(launch: Launch, folder: Path) -> bool:
    """Return True if its checkpoints lie where no other job can put anything."""
    place = launch.environment.get("LOADMASTER_CHECKPOINT_DIR", "")
    real, shared = Path(place).resolve(), launch.checkpoints
    parents = [folder.resolve(), *([shared.resolve()] if shared else [])]
    return bool(place) and real.parent in parents


def _is_shown(path: str, rules: MountRules, *, writable: bool = False) -> bool:
    """Return True if a path, its links followed, is the same in a sandbox and outside."""
    real = Path(path).resolve()
    mounts = [mount for mount in rules.allowed if mount.writable or not writable]
    is_below = any(real.is_relative_to(mount.path) for mount in mounts)
    return is_below and not rules.is_private(real)


def working_isolation(
    state: Path,
    users: range | None,
    mounts: tuple[AllowedMount, ...] = (),
    before: str | None = None,
) -> Isolation:
    """The best isolation that a trial finds to work here, never less than the kind of `before`.

    That kind is trusted where no trial can be made: its jobs may be running. Raises UndecidedError
    if none can be made just now and there was none before, NoIsolationError if nothing works.
    """
    program = shutil.which("bwrap") or ""
    found = [Isolation(state, users, program, mounts)] if program else []
    if program and _knows(program, "--disable-userns"):
        found.insert(0, replace(found[0], closes_namespaces=True))
    if users is not None and before != BUBBLEWRAP:
        found.append(Isolation(state, users, "", mounts))
    problems = [] if program else ["bubblewrap (bwrap) is not installed"]
    for isolation in found:
        try:
            problem = isolation.problem()
        except OSError as error:
            problem = f"the trial of {isolation.kind} cannot be made: {error}"
            if known := [one for one in found if one.kind == before]:
                logger.warning("%s; %s worked before", problem, before)
                return known[0]
            if error.errno in PASSING:
                raise UndecidedError(problem) from error
        if not problem:
            if not isolation.program and problems:
                logger.warning("jobs are kept apart by %s alone: %s", USERS, problems[0])
            elif isolation.program and not isolation.closes_namespaces:
                why = problems[0] if problems else "it takes bubblewrap 0.8 or newer"
                logger.warning("jobs can make user namespaces of their own: %s", why)
            return isolation
        problems.append(problem)
    private_folder(state)
    raise NoIsolationError("; ".join(dict.fromkeys(problems)))


def _failure(command: list[str], user: int | None) -> str:
    """Words of a trial that failed; OSError if it cannot be started, or does not end in time."""
    own: Any = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(
        command, **own, stdout=null, stderr=pipe, text=True, env={}, start_new_session=True
    ) as trial:
        try:
            words = trial.communicate(timeout=TRIAL_S)[1].strip()
        except subprocess.TimeoutExpired:
            os.killpg(trial.pid, signal.SIGKILL)
            raise TimeoutError(errno.ETIMEDOUT, f"it took more than {TRIAL_S:.0f} s") from None
    if not trial.returncode:
        return ""
    for number in PASSING:  # where no user may have a namespace, there is "no space" for one too
        if os.strerror(number) in words and not (number == errno.ENOSPC and "namespace" in words):
            raise OSError(number, words)
    return words or "the trial failed"


def to_files(argv: list[str], outputs: dict[str, str]) -> list[str]:
    """A command whose output goes to files that it opens itself."""
    if not outputs:
        return argv
    named = [outputs.get(stream, "") for stream in ("stdout", "stderr")]
    return ["/bin/sh", "-c", TO_FILES, "sh", *named, *argv]


def make_own(folder: Path, user: int | None) -> None:
    """Make what an isolated job sees of its run's folder, and let it write what is its own."""
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


def _places(folder: Path, shown: Iterable[Path]) -> list[str]:
    """Places at which a folder is seen where these are shown, which may be links themselves."""
    real = folder.resolve()
    above = [one for one in shown if folder.is_dir() and real.is_relative_to(one.resolve())]
    return sorted({str(one / real.relative_to(one.resolve())) for one in above})


@cache
def _knows(program: str, option: str) -> bool:
    """Return True if this bubblewrap knows an option: `--size` came with 0.7, others with 0.8."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([program, "--help"], capture_output=True, timeout=TRIAL_S)
        return option.encode() in done.stdout.split()
    return False


def _own_words(folder: Path, checkpoints: str) -> list[str]:
    """Mounts of the job's own files, at the same places as outside."""
    words: list[str] = []
    for name in (ORDERS, "bin", "slurm_script"):
        words += ["--ro-bind-try", str(folder / name), str(folder / name)]
    for name in (*OWN_FOLDERS, *OWN_FILES):
        words += ["--bind", str(folder / name), str(folder / name)]
    return [*words, "--bind", checkpoints, checkpoints] if checkpoints else words


def _used() -> list[Path]:
    """Places that jobs use outside SYSTEM: this Python, this package, PYTHONPATH, RESOLVER."""
    found = [sys.prefix, sys.base_prefix, str(Path(loadmaster.__file__).parent)]
    found.append(str(RESOLVER.resolve()))
    found += [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = dict.fromkeys(Path(path).absolute() for path in found)
    return [path for path in paths if not any(path.is_relative_to(one) for one in SYSTEM)]


def _groups() -> list[int]:
    return [group.gr_gid for group in grp.getgrall() if group.gr_name in GROUPS]


def _unseen(field: str, path: str) -> str:
    remedy = "ask its operator to list it (--mounts), or leave it out"
    return f"{field}: this node does not show its jobs {path}; {remedy}"


def _let_through(folder: Path | None) -> None:
    """Let others pass through a folder of this user's, whose content they cannot list."""
    if folder and folder.exists() and folder.stat().st_uid == os.getuid():
        folder.chmod(folder.stat().st_mode | 0o011)


def _give_all(folder: Path, user: int) -> None:
    """Give a folder to a user, with what an agent without users had left there."""
    if folder.stat().st_uid == user:
        return
    for _, folders, files, here in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, user, user, dir_fd=here, follow_symlinks=False)
    os.chown(folder, user, user, follow_symlinks=False)
    folder.chmod(0o700)
