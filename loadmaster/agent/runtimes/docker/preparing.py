"""Prepares a container in a thread: image, owners of folders, container with guard."""

import logging
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

from loadmaster.agent.runtimes.base import Limits
from loadmaster.agent.runtimes.docker import port
from loadmaster.agent.runtimes.docker.options import JOB_USER, DockerOptions
from loadmaster.agent.runtimes.docker.plan import (
    ASSIGNMENT,
    BIN,
    FENCE,
    GUARD,
    OWNER,
    RUN,
    SHELL,
    WORK,
    ContainerPlan,
    Task,
    container_plan,
)
from loadmaster.agent.runtimes.docker.pulling import digest_of, pinned
from loadmaster.agent.runtimes.docker.scripts import interpreters
from loadmaster.agent.runtimes.docker.watch import Watch
from loadmaster.agent.runtimes.mounts import (
    Mount,
    MountRules,
    checkpoint_problem,
    job_mounts,
    make_folder,
    moved,
)
from loadmaster.protocol import ReasonClass
from loadmaster.slurm.programs.server import ACCESS

PULL_TRIES = 3
PULL_PAUSE_S = 2.0
ENGINE_PAUSE_S = 1.0
NAME_TAKEN_S = 120.0
"""Longest time that a name may be held by a container being made or removed."""

PYTHONS = (
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/opt/conda/bin/python3",
    "/usr/local/bin/python",
)

OWN_FILES = (
    "guard",
    "work",
    "run/progress.jsonl",
    "run/steps",
    "guard/launch.json",
    "guard/launch.sh",
    f"bin/programs/{ACCESS}",
)
"""Paths below a run's folder that belong to the container's user."""

MOVED = (
    "mounts, checkpoint_place: a folder leads elsewhere than when the launch was accepted; put no"
    " link where jobs can write"
)

logger = logging.getLogger(__name__)


class PreparationError(Exception):
    """The container cannot be made; `blame` says whose fault it is."""

    def __init__(self, blame: ReasonClass, text: str) -> None:
        super().__init__(text)
        self.blame = blame


class Preparation(threading.Thread):
    """One launch's preparation; ends with `done` (the image's digest), `error`, or called `off`.

    `shells` are the ids of images known to have a shell.
    """

    def __init__(self, engine: port.Engine, task: Task, shells: set[str], watch: Watch) -> None:
        super().__init__(name=f"prepare {task.run.name}", daemon=True)
        self._engine, self._task, self._shells, self._watch = engine, task, shells, watch
        self.fraction = 0.0
        self.error: PreparationError | None = None
        self.done: str | None = None
        self.off = threading.Event()
        self._unseen_since_s: float | None = None

    def run(self) -> None:
        """Prepare; an Engine that does not answer is asked again until it does."""
        while not self.off.is_set():
            try:
                digest = self._prepare()
                # else an older container of the name would count as this one's end
                self._watch.look()
                self.done = digest
                break
            except port.EngineDownError as error:
                logger.warning("%s waits for the Engine: %s", self._task.run.name, error)
                self.off.wait(ENGINE_PAUSE_S)
            except PreparationError as error:
                self.error = error
                break
            except (port.EngineRefusedError, OSError) as error:
                text = f"the container cannot be made: {error}"
                self.error = PreparationError(ReasonClass.NODE, text)
                break
        if self.off.is_set():
            self._remove_created()
        self._watch.wake()

    def _remove_created(self) -> None:
        try:
            found = self._engine.inspect(self._task.run.name)
            if found and found.state == "created" and self._is_ours(found.labels):
                self._engine.remove(self._task.run.name)
        except (port.EngineDownError, port.EngineRefusedError) as error:
            logger.debug("%s: %s", self._task.run.name, error)  # it is found as a stray

    def _is_ours(self, labels: dict[str, str]) -> bool:
        run, found = self._task.run, tuple(map(labels.get, (OWNER, ASSIGNMENT, FENCE)))
        return found == (self._task.owner, run.assignment, str(run.fence))

    def _prepare(self) -> str:
        task = self._task
        image = self._image()
        user = task.options.identity() or self._own_user(image)
        mounts = self._job_mounts()
        self._give_folders_to(user)
        self.fraction = 1.0
        plan = container_plan(task, user, mounts)
        working_dir = image.working_dir if image.working_dir not in ("", "/") else WORK
        working_dir = task.spec.folder or working_dir
        self._create(replace(plan, image=image.id, working_dir=working_dir), image)
        return digest_of(task.spec.image, image.id, image.digests)

    def _job_mounts(self) -> tuple[Mount, ...]:
        """The job's mounts, checked again: jobs may have placed links during the pull."""
        task, wanted = self._task, self._task.wanted
        places = MountRules(
            task.options.mounts, task.private, Path(wanted.shared) if wanted.shared else None
        )
        place = wanted.checkpoints
        try:
            mounts = job_mounts(task.spec.mounts, places)
        except ValueError as error:
            raise PreparationError(ReasonClass.USER, str(error)) from error
        own = task.folder / "checkpoints"
        if place and (problem := checkpoint_problem(place, task.spec.job, own, places)):
            raise PreparationError(ReasonClass.USER, problem)
        sources = tuple(mount.source for mount in mounts)
        if sources != wanted.mounted or (place and moved([place])):
            raise PreparationError(ReasonClass.USER, MOVED)
        return mounts

    def _image(self) -> port.Image:
        """The image to use: by the job's digest if it has one, else by its name."""
        name = self._task.spec.image
        digest = self._task.spec.image_digest or name.partition("@")[2]
        policy = self._task.options.pull
        if digest:
            exact, called = pinned(name, digest), f"{name}, of which this job uses {digest},"
            found = self._engine.find(digest) or self._engine.find(exact)
            return found or self._pulled(exact, called)
        found = None if policy == "always" else self._engine.find(name)
        return found or self._pulled(name, name)

    def _pulled(self, reference: str, called: str) -> port.Image:
        if self._task.options.pull == "never":
            text = f"the image {called} is not on this node, whose operator lets it pull none"
            raise PreparationError(ReasonClass.IMAGE, text)
        for attempt in range(PULL_TRIES):
            try:
                self._engine.pull(reference, self._came_on, self.off.is_set)
                break
            except (port.ImageMissingError, port.EngineRefusedError) as error:
                if attempt + 1 == PULL_TRIES or self.off.wait(PULL_PAUSE_S):
                    text = f"the image {called} cannot be pulled: {error}"
                    raise PreparationError(ReasonClass.IMAGE, text) from error
        found = self._engine.find(reference)
        if found is None:
            text = f"the image {called} was pulled and is not there"
            raise PreparationError(ReasonClass.IMAGE, text)
        return found

    def _came_on(self, fraction: float) -> None:
        self.fraction = min(fraction, 0.99)

    def _own_user(self, image: port.Image) -> tuple[int, int]:
        """The image's own user by number, unless that is root."""
        user, _, group = image.user.partition(":")
        if not user or user == "root":
            return JOB_USER, JOB_USER
        if not user.isdigit():
            return self._named_user(image, user)
        own = (int(user), int(group) if group.isdigit() else int(user))
        return own if int(user) else (JOB_USER, JOB_USER)

    def _named_user(self, image: port.Image, user: str) -> tuple[int, int]:
        probe = f"{self._task.run.name}-look"
        plan = ContainerPlan(probe, image.id, ("/look",), "", "/", {}, ())
        try:
            self._engine.create(plan, DockerOptions(network="none"))
            users = (self._engine.read_file(probe, "/etc/passwd") or b"").decode(errors="replace")
        except port.NameTakenError as error:  # left by a call whose answer was lost
            raise self._unseen(error) from error
        finally:
            self._engine.remove(probe)
        for line in users.splitlines():
            fields = line.split(":")
            if fields[0] == user and len(fields) > 3 and all(f.isdigit() for f in fields[2:4]):
                return (int(fields[2]), int(fields[3])) if int(fields[2]) else (JOB_USER, JOB_USER)
        text = f"the image's user {user} is not in its /etc/passwd: give it by number"
        raise PreparationError(ReasonClass.IMAGE, text)

    def _give_folders_to(self, user: tuple[int, int]) -> None:
        folder = self._task.folder
        for name in OWN_FILES:
            if (folder / name).exists():
                _give(folder / name, user)
        if place := self._task.wanted.checkpoints:
            is_new = make_folder(Path(place))
            if is_new or self._task.wanted.owns_checkpoints:
                _give(Path(place), user)

    def _create(self, plan: ContainerPlan, image: port.Image) -> None:
        """Create the container with a guard that its image can run."""
        wanted = self._task.wanted
        arguments = (
            GUARD,
            RUN,
            _hundredths(wanted.grace_s),
            wanted.boot_id,
            *_limits(wanted.limits),
        )
        self._make(replace(plan, entrypoint=(*SHELL, *arguments)))
        self._check_script(plan.name, image)
        if image.id in self._shells or self._engine.read_file(plan.name, SHELL[0]) is not None:
            self._shells.add(image.id)
            return
        pythons = [path for path in PYTHONS if self._engine.read_file(plan.name, path) is not None]
        self._engine.remove(plan.name)
        if not pythons:
            neither = f"has neither /bin/sh nor {PYTHONS[0]}, of which the guard needs one: add one"
            text = f"the image {self._task.spec.image} {neither}"
            raise PreparationError(ReasonClass.IMAGE, text)
        self._make(replace(plan, entrypoint=(pythons[0], "-I", "-S", f"{BIN}/guard.py", GUARD)))

    def _check_script(self, container: str, image: port.Image) -> None:
        """Raise PreparationError if the image lacks what starts the job's script."""
        spec = self._task.spec
        if not spec.script:
            return
        name, places = interpreters(spec.script, image.path)
        missing = ""
        if all(self._engine.read_file(container, path) is None for path in places):
            missing = f"{name}, which the script's first line names"
        elif self._engine.read_file(container, SHELL[0]) is None:
            missing = f"{SHELL[0]}, which starts scripts"
        if missing:
            self._engine.remove(container)
            text = f"the image {spec.image} has no {missing}; add it, or choose another image"
            raise PreparationError(ReasonClass.USER, text)

    def _make(self, plan: ContainerPlan) -> None:
        """Create the container, or adopt one left by a failed call or an earlier agent."""
        try:
            self._engine.create(plan, self._task.options)
        except port.NameTakenError as error:
            found = self._engine.inspect(plan.name)
            if found is None or found.state in ("removing", "dead"):
                raise self._unseen(error) from error
            if not self._is_ours(found.labels):
                text = f"the container's name is taken by a stranger: {error}"
                raise PreparationError(ReasonClass.NODE, text) from error
            if found.state == "created" and found.image != plan.image:
                self._engine.remove(plan.name)
                try:
                    self._engine.create(plan, self._task.options)
                except port.NameTakenError as again:  # the old one is still being removed
                    raise self._unseen(again) from again

    def _unseen(self, error: port.NameTakenError) -> Exception:
        """Ask again: the Engine holds a name while it makes or removes a container."""
        now_s = time.monotonic()
        self._unseen_since_s = now_s if self._unseen_since_s is None else self._unseen_since_s
        if now_s - self._unseen_since_s < NAME_TAKEN_S:
            text = "a container of this name is being made or removed"
            return port.EngineDownError(f"{text}: {error}")
        text = f"the container's name is taken, and by none that the Engine shows: {error}"
        return PreparationError(ReasonClass.NODE, text)


def _limits(limits: Limits) -> tuple[str, ...]:
    """Walltime, deadline and the signal before them, as the shell's guard takes them."""
    signal = limits.signal
    ends = _hundredths(limits.walltime_s), _hundredths(limits.deadline_s)
    return (*ends, str(signal.number), _hundredths(signal.before_s), signal.to) if signal else ends


def _hundredths(seconds: float | None) -> str:
    """Hundredths of a second, as the shell's guard counts; "-" for none."""
    return "-" if seconds is None else str(round(seconds * 100))


def _give(path: Path, user: tuple[int, int]) -> None:
    if os.getuid() == 0:
        os.chown(path, *user, follow_symlinks=False)
