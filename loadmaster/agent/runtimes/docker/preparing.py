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
"""Seconds between two tries of a pull."""

ENGINE_PAUSE_S = 1.0
"""Seconds between two tries of an Engine that does not answer."""

NAME_TAKEN_S = 120.0
"""Longest time that a name may be held by a container being made or removed."""

PYTHONS = (
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/opt/conda/bin/python3",
    "/usr/local/bin/python",
)
"""Paths of a Python for the guard, in images without a shell."""

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
    """The container cannot be made; `blame` is the class of the reason."""

    def __init__(self, blame: ReasonClass, text: str) -> None:
        super().__init__(text)
        self.blame = blame


class Preparation(threading.Thread):
    """Preparation of one launch's container, in a thread of its own.

    `shells`: ids of images that are known to have a shell; it is shared by all preparations.
    """

    def __init__(self, engine: port.Engine, task: Task, shells: set[str], watch: Watch) -> None:
        super().__init__(name=f"prepare {task.run.name}", daemon=True)
        self._engine = engine
        self._task = task
        self._shells = shells
        self._watch = watch
        self.fraction = 0.0
        """Fraction of the preparation that is done, 0 to 1."""
        self.done: str | None = None
        """Digest of the image, once the container is made."""
        self.error: PreparationError | None = None
        """Reason why the container cannot be made."""
        self.off = threading.Event()
        """Set to call the preparation off: the launch is no longer wanted."""
        self._name_taken_since_s: float | None = None

    def run(self) -> None:
        """Prepare the container; try again for as long as the Engine does not answer."""
        while not self.off.is_set():
            try:
                digest = self._prepare()
                # Without a new look an older container of this name would count as ended.
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
        """Remove the container if it was made; on failure it is found later, as a stray."""
        name = self._task.run.name
        try:
            container = self._engine.inspect(name)
            if container and container.state == "created" and self._is_ours(container.labels):
                self._engine.remove(name)
        except (port.EngineDownError, port.EngineRefusedError) as error:
            logger.debug("%s: %s", name, error)

    def _is_ours(self, labels: dict[str, str]) -> bool:
        """Return True if these are the labels of this launch's container."""
        run = self._task.run
        own_labels = {OWNER: self._task.owner, ASSIGNMENT: run.assignment, FENCE: str(run.fence)}
        return all(labels.get(name) == value for name, value in own_labels.items())

    def _prepare(self) -> str:
        """Make the container; return the image's digest.

        Raises PreparationError, EngineDownError, EngineRefusedError and OSError.
        """
        # 1. The image, and the user of its processes.
        task = self._task
        image = self._find_or_pull()
        user = task.options.identity() or self._image_user(image)

        # 2. The folders that the container will have.
        mounts = self._job_mounts()
        self._give_folders_to(user)
        self.fraction = 1.0

        # 3. The container.
        plan = container_plan(task, user, mounts)
        working_dir = image.working_dir if image.working_dir not in ("", "/") else WORK
        working_dir = task.spec.folder or working_dir
        self._create(replace(plan, image=image.id, working_dir=working_dir), image)
        return digest_of(task.spec.image, image.id, image.digests)

    def _find_or_pull(self) -> port.Image:
        """Return the image: by the job's digest if it has one, else by its name."""
        name = self._task.spec.image
        digest = self._task.spec.image_digest or name.partition("@")[2]
        if digest:
            exact = pinned(name, digest)
            image = self._engine.find(digest) or self._engine.find(exact)
            return image or self._pull(exact, f"{name}, of which this job uses {digest},")
        if self._task.options.pull == "always":
            return self._pull(name, name)
        return self._engine.find(name) or self._pull(name, name)

    def _pull(self, reference: str, description: str) -> port.Image:
        """Pull an image. `description`: the image in words, for errors."""
        if self._task.options.pull == "never":
            text = f"the image {description} is not on this node, and its agent may pull none"
            raise PreparationError(ReasonClass.IMAGE, text)
        for attempt in range(1, PULL_TRIES + 1):
            try:
                self._engine.pull(reference, self._set_fraction, self.off.is_set)
                break
            except (port.ImageMissingError, port.EngineRefusedError) as error:
                if attempt == PULL_TRIES or self.off.wait(PULL_PAUSE_S):
                    text = f"the image {description} cannot be pulled: {error}"
                    raise PreparationError(ReasonClass.IMAGE, text) from error
        image = self._engine.find(reference)
        if image is None:
            text = f"the image {description} was pulled, but the Docker Engine does not have it"
            raise PreparationError(ReasonClass.IMAGE, text)
        return image

    def _set_fraction(self, pulled: float) -> None:
        """Note the fraction of the image that is pulled; more is to be done after that."""
        self.fraction = min(pulled, 0.99)

    def _image_user(self, image: port.Image) -> tuple[int, int]:
        """Return numbers of user and group that the image names; JOB_USER in place of root."""
        user, _, group = image.user.partition(":")
        if not user or user == "root":
            return JOB_USER, JOB_USER
        if not user.isdigit():
            return self._named_user(image, user)
        if int(user) == 0:
            return JOB_USER, JOB_USER
        return int(user), int(group) if group.isdigit() else int(user)

    def _named_user(self, image: port.Image, user: str) -> tuple[int, int]:
        """Return numbers of a user and its group by /etc/passwd of the image."""
        # 1. Read the file from a container that is made for that and never started.
        probe = f"{self._task.run.name}-look"
        plan = ContainerPlan(probe, image.id, ("/look",), "", "/", {}, ())
        try:
            self._engine.create(plan, DockerOptions(network="none"))
            content = self._engine.read_file(probe, "/etc/passwd") or b""
        except port.NameTakenError as error:  # left by a call whose answer was lost
            raise self._name_taken(error) from error
        finally:
            self._engine.remove(probe)

        # 2. Find the user's line: NAME:PASSWORD:USER:GROUP:...
        for line in content.decode(errors="replace").splitlines():
            fields = line.split(":")
            if fields[0] != user or len(fields) < 4:
                continue
            if fields[2].isdigit() and fields[3].isdigit():
                if int(fields[2]) == 0:
                    return JOB_USER, JOB_USER
                return int(fields[2]), int(fields[3])
        text = f"the image's user {user} is not in its /etc/passwd: give it by number"
        raise PreparationError(ReasonClass.IMAGE, text)

    def _job_mounts(self) -> tuple[Mount, ...]:
        """Return the job's mounts, checked again: jobs may have placed links during the pull."""
        task = self._task
        request = task.request
        shared = Path(request.shared) if request.shared else None
        rules = MountRules(task.options.mounts, task.forbidden_folders, shared)
        try:
            mounts = job_mounts(task.spec.mounts, rules)
        except ValueError as error:
            raise PreparationError(ReasonClass.USER, str(error)) from error
        place = request.checkpoints
        if place:
            own = task.folder / "checkpoints"
            problem = checkpoint_problem(place, task.spec.job, own, rules)
            if problem:
                raise PreparationError(ReasonClass.USER, problem)
        sources = tuple(mount.source for mount in mounts)
        if sources != request.mounted or (place and moved([place])):
            raise PreparationError(ReasonClass.USER, MOVED)
        return mounts

    def _give_folders_to(self, user: tuple[int, int]) -> None:
        """Give the job's user its own files, and the folder of checkpoints if that is allowed."""
        folder = self._task.folder
        for name in OWN_FILES:
            if (folder / name).exists():
                _give(folder / name, user)
        request = self._task.request
        if request.checkpoints:
            is_new = make_folder(Path(request.checkpoints))
            if is_new or request.owns_checkpoints:
                _give(Path(request.checkpoints), user)

    def _create(self, plan: ContainerPlan, image: port.Image) -> None:
        """Create the container with a guard that its image can run."""
        # 1. With the shell's guard. Only a container shows whether its image has a shell.
        request = self._task.request
        grace = _hundredths(request.grace_s)
        arguments = (GUARD, RUN, grace, request.boot_id, *_limits(request.limits))
        self._create_or_adopt(replace(plan, entrypoint=(*SHELL, *arguments)))
        self._check_script(plan.name, image)
        if image.id in self._shells or self._engine.read_file(plan.name, SHELL[0]) is not None:
            self._shells.add(image.id)
            return

        # 2. Without a shell, anew with Python's guard.
        pythons = [path for path in PYTHONS if self._engine.read_file(plan.name, path) is not None]
        self._engine.remove(plan.name)
        if not pythons:
            neither = f"has neither /bin/sh nor {PYTHONS[0]}; the guard needs one of them: add one"
            text = f"the image {self._task.spec.image} {neither}"
            raise PreparationError(ReasonClass.IMAGE, text)
        entrypoint = (pythons[0], "-I", "-S", f"{BIN}/guard.py", GUARD)
        self._create_or_adopt(replace(plan, entrypoint=entrypoint))

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

    def _create_or_adopt(self, plan: ContainerPlan) -> None:
        """Create the container, or adopt one left by a failed call or an earlier agent."""
        try:
            self._engine.create(plan, self._task.options)
        except port.NameTakenError as error:
            container = self._engine.inspect(plan.name)
            if container is None or container.state in ("removing", "dead"):
                raise self._name_taken(error) from error
            if not self._is_ours(container.labels):
                text = f"another program's container has the name of this one: {error}"
                raise PreparationError(ReasonClass.NODE, text) from error
            if container.state == "created" and container.image != plan.image:
                self._engine.remove(plan.name)
                try:
                    self._engine.create(plan, self._task.options)
                except port.NameTakenError as again:  # the old one is still being removed
                    raise self._name_taken(again) from again

    def _name_taken(self, error: port.NameTakenError) -> Exception:
        """Return the error to raise for a name that is taken by no container that can be seen.

        The Engine holds a name while it makes or removes a container, so for NAME_TAKEN_S it is
        one after which `run` tries again.
        """
        now_s = time.monotonic()
        if self._name_taken_since_s is None:
            self._name_taken_since_s = now_s
        if now_s - self._name_taken_since_s < NAME_TAKEN_S:
            text = "a container of this name is being made or removed"
            return port.EngineDownError(f"{text}: {error}")
        text = f"the container's name is taken, but the Engine shows no such container: {error}"
        return PreparationError(ReasonClass.NODE, text)


def _limits(limits: Limits) -> list[str]:
    """Return guard.sh's arguments for walltime, deadline and the signal before them."""
    arguments = [_hundredths(limits.walltime_s), _hundredths(limits.deadline_s)]
    signal = limits.signal
    if signal:
        arguments += [str(signal.number), _hundredths(signal.before_s), signal.to]
    return arguments


def _hundredths(seconds: float | None) -> str:
    """Return hundredths of a second, in which guard.sh counts; "-" for None."""
    return "-" if seconds is None else str(round(seconds * 100))


def _give(path: Path, user: tuple[int, int]) -> None:
    """Give a path to a user and group, if the agent is root."""
    if os.getuid() == 0:
        os.chown(path, *user, follow_symlinks=False)
