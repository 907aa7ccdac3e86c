"""Validation of jobs: plain data and a user become a JobRequest or JobInvalid."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import partial
from pathlib import PurePosixPath
from typing import Any, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib.auth.models import AnonymousUser, User
from django.utils import timezone

from clusters.models import Cluster
from clusters.models.clusters import Profiling
from jobs.models import Dependency, Job, Secret, Team
from jobs.submission import fields
from jobs.submission.array_expression import ArraySpec, array_indices
from jobs.submission.feasibility import Demand, Infeasible, Inventory
from jobs.submission.fields import FieldError
from jobs.submission.quotas import above_limits
from jobs.submission.sbatch.on_cluster import job_on_cluster
from jobs.submission.seats import wrong_seats
from jobs.submission.shell_syntax import shell_warnings
from jobs.submission.waits import Waits, waits_of
from jobs.submission.warnings import warnings_of
from loadmaster.features import RUNTIMES
from loadmaster.slurm.options.reading import ScriptError

T = TypeVar("T")

ON_DISCONNECT = ("stop", "keep")
ON_WALLTIME = ("kill", "warn")
PROCESSES = ("first", "each")
MAX_GPUS = 4096
MAX_UNITS = 100_000
MAX_EPOCHS = 1_000_000
MAX_STEPS = 2_000_000_000
MAX_TOTAL_STEPS = 10**15
MAX_CORES = 4096
MAX_MEMORY_GB = 65_536
MAX_WEIGHT = 1e6
MAX_PRIORITY = 1_000_000
MAX_RETRIES = 100

FIELDS = (
    "name", "cluster", "team", "runtime", "image", "command", "environment", "mounts", "epochs",
    "steps_per_epoch", "steps", "gpus", "gpus_min", "gpus_max", "allowed_types", "cores",
    "memory_gb", "due", "deadline", "walltime", "tardiness_weight", "priority", "weight",
    "max_retries", "checkpoint_place", "kind", "may_mix", "may_share", "labels", "dependencies",
    "hold", "on_disconnect", "profiling", "repeatable", "resources", "exclusive", "preemptible",
    "on_walltime", "units", "units_per_node", "nodes", "processes", "array", "begin", "script",
    "folder", "output", "error_output", "signal", "sbatch",
)  # fmt: skip
"""Fields of a job, as in docs/jobs.md."""

STEPS = frozenset({"steps", "epochs", "steps_per_epoch"})
"""Fields of a training job; a job without any of them is a batch job."""


class JobInvalid(Exception):
    """Invalid job; `fields` holds the messages by field."""

    def __init__(self, problems: Mapping[str, list[str]]) -> None:
        super().__init__(
            "; ".join(
                f"{name}: {message}" for name, messages in problems.items() for message in messages
            )
        )
        self.fields = {name: list(messages) for name, messages in problems.items()}


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Validated request: unsaved `job` without owner and kind; `kind` is the user's name or "".

    Elements of an array wait for `dependencies`, and each for the jobs `of_index` too; for one of
    all these if `one_suffices`. One that is `test_only` is to be forecast, and not submitted.
    """

    job: Job
    kind: str
    hold: bool
    dependencies: tuple[Dependency, ...]
    warnings: tuple[str, ...]
    array: ArraySpec | None = None
    of_index: Mapping[int, list[UUID]] = field(default_factory=dict)
    one_suffices: bool = False
    test_only: bool = False

    @property
    def size(self) -> int:
        """Number of jobs that it becomes."""
        return len(self.array.indices) if self.array else 1


def _number(most: float, *, above: bool = False) -> Callable[[object], float]:
    return partial(fields.number, least=0, most=most, above=above)


_COUNT = partial(fields.whole, least=1, most=MAX_UNITS)

_PLAIN: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
    "name": ("", partial(fields.text, most=100, empty=False)),
    "mounts": ((), fields.mounts),
    "cores": (1.0, _number(MAX_CORES, above=True)),
    "memory_gb": (1.0, _number(MAX_MEMORY_GB, above=True)),
    "walltime": (None, fields.duration_s),
    "tardiness_weight": (0.0, _number(MAX_WEIGHT)),
    "priority": (0, partial(fields.whole, least=-MAX_PRIORITY, most=MAX_PRIORITY)),
    "weight": (1.0, _number(MAX_WEIGHT, above=True)),
    "checkpoint_place": ("", partial(fields.text, most=300)),
    "kind": ("", partial(fields.text, most=100)),
    "may_mix": (False, fields.flag),
    "may_share": (False, fields.flag),
    "profiling": ("", partial(fields.choice, known=("", *Profiling.values))),
    "repeatable": (False, fields.flag),
    "hold": (False, fields.flag),
    "labels": ((), partial(fields.words, pattern=fields.LABELS, what="labels")),
    "on_disconnect": ("stop", partial(fields.choice, known=ON_DISCONNECT)),
    "resources": ({}, fields.amounts),
    "exclusive": (False, fields.flag),
    "script": ("", fields.script),
    "folder": ("", fields.folder),
    "output": ("", partial(fields.text, most=fields.MAX_PATH)),
    "error_output": ("", partial(fields.text, most=fields.MAX_PATH)),
    "signal": ("", fields.signal),
    "units": (1, _COUNT),
    "units_per_node": (0, _COUNT),
    "nodes": (0, _COUNT),
    "processes": ("first", partial(fields.choice, known=PROCESSES)),
}
"""Independent fields: (default, reader)."""


def validate_job(user: User, data: object, inventory: Inventory | None = None) -> JobRequest:
    """Validate a user's job. Raises JobInvalid with every problem found."""
    return _Reading(user, data, inventory or Inventory()).request()


class _Reading:
    def __init__(self, user: User | AnonymousUser, data: object, inventory: Inventory) -> None:
        if not isinstance(data, dict):
            said = f"must be an object with the fields of a job, not {fields.called(data)}"
            raise JobInvalid({"job": [said]})
        self.user = user
        self.inventory = inventory
        self.now = timezone.now()
        # A field that is null or left empty in a form is a field not given.
        self.data: dict[str, Any] = {
            str(k): v for k, v in data.items() if v is not None and v != ""
        }
        self.problems: dict[str, list[str]] = {}
        self.warnings: list[str] = []
        self.places: dict[str, str] = {}
        self.test_only = False
        for name, message in fields.unknown(data, FIELDS):
            self._problem(name, message)

    def request(self) -> JobRequest:
        cluster = self._named("cluster", self.inventory.clusters, "there is no cluster yet")
        no_team = "only members of a team submit jobs; ask an operator to make you one"
        team = self._named("team", self.inventory.teams(self.user), no_team)
        zone = ZoneInfo(cluster.timezone) if cluster else UTC
        self._read_sbatch(zone, cluster)
        plain = {name: self._read(name, *reading) for name, reading in _PLAIN.items()}
        if "name" not in self.data:
            self._problem("name", "is missing; give the job a short name")
        kind = plain.pop("kind")
        hold = plain.pop("hold")
        walltime_s = plain.pop("walltime")
        batch = not STEPS & set(self.data)
        epochs, steps_per_epoch = (1, 1) if batch else self._steps()
        gpus_min, gpus_max = self._gpus(0 if batch else 1)
        if batch and gpus_min < gpus_max:
            wanted = "a batch job (one without steps) has a fixed number of GPUs"
            self._problem("gpus", f"{wanted}, not {gpus_min}..{gpus_max}")
        for name, message in above_limits({**plain, "gpus_min": gpus_min}, team) if team else ():
            self._problem(name, message)
        for name, message in wrong_seats(self.data, plain, gpus_min, batch=batch):
            self._problem(name, message)
        # A batch job runs once: its own failure ends it.
        retries = partial(fields.whole, least=0, most=MAX_RETRIES)
        plain["max_retries"] = self._read("max_retries", 0 if batch else 1, retries)
        end = {"preemptible": not batch, "on_walltime": "kill" if batch else "warn"}
        end["preemptible"] = self._read("preemptible", end["preemptible"], fields.flag)
        known = partial(fields.choice, known=ON_WALLTIME)
        end["on_walltime"] = self._read("on_walltime", end["on_walltime"], known)
        types = self._allowed_types()
        runtime = self._runtime()
        image = self._image(runtime)
        command = self._command(runtime)
        array: ArraySpec | None = self._read("array", None, array_indices)
        environment = self._environment(team)
        waits = self._waits(cluster, array, plain["name"])
        times = self._times(zone)
        if cluster and not self.problems:
            demand = Demand(
                gpus_min=gpus_min,
                gpus_max=gpus_max,
                allowed_types=types,
                cores=plain["cores"],
                memory_gb=plain["memory_gb"],
                labels=plain["labels"],
                runtime=runtime,
                resources=tuple(plain["resources"].items()),
                units=plain["units"],
                units_per_node=plain["units_per_node"],
                nodes=plain["nodes"],
                batch=batch,
                may_mix=plain["may_mix"],
            )
            self._feasible(cluster, demand)
        if plain["script"] and not batch:
            self._problem("script", "is for batch jobs; leave out the steps")
        if self.problems or cluster is None or team is None:
            raise JobInvalid(self.problems)
        job = Job(
            cluster=cluster, team=team, runtime=runtime, image=image,
            image_digest=fields.digest_of(image), command=list(command), environment=environment,
            epochs=epochs, steps_per_epoch=steps_per_epoch, total_steps=epochs * steps_per_epoch,
            gpus_min=gpus_min, gpus_max=gpus_max, allowed_types=list(types), walltime_s=walltime_s,
            batch=batch, **end, **times,
            **{n: list(v) if isinstance(v, tuple) else v for n, v in plain.items()},
        )  # fmt: skip
        self.warnings += warnings_of(job)
        for dependency in waits.of_all:
            dependency.job = job
        return JobRequest(
            job=job,
            kind=kind,
            hold=hold,
            dependencies=tuple(waits.of_all),
            warnings=tuple(self.warnings),
            array=array,
            of_index=waits.of_index,
            one_suffices=waits.one_suffices,
            test_only=self.test_only,
        )

    # -- reading

    def _read(self, name: str, default: T, reader: Callable[[Any], T]) -> T:
        """Return the field's value, or its default with a noted problem."""
        if name not in self.data:
            return default
        try:
            return reader(self.data[name])
        except FieldError as error:
            self._problem(name, str(error))
            return default

    def _problem(self, name: str, message: str) -> None:
        place = f"{self.places[name]}: " if name in self.places else ""
        self.problems.setdefault(name, []).append(place + message)

    def _read_sbatch(self, zone: tzinfo, cluster: Cluster | None) -> None:
        """Take the fields of a script for Slurm; those that the job has itself hold."""
        if "sbatch" not in self.data:
            return
        try:
            now = self.now.astimezone(zone)
            submitted = job_on_cluster(self.data, now, cluster, self.inventory)
        except ScriptError as error:
            raise JobInvalid({**self.problems, "sbatch": list(error.problems)}) from None
        own = set(self.data)
        self.data = {**submitted.fields, **self.data}
        self.places = {n: place for n, place in submitted.places.items() if n not in own}
        self.warnings += submitted.warnings
        self.test_only = submitted.test_only

    # -- where it belongs

    def _named(self, field: str, known: dict[str, T], none: str) -> T | None:
        name = self.data.get(field)
        if name is None and len(known) == 1:
            return next(iter(known.values()))
        if isinstance(name, str) and name in known:
            return known[name]
        if not known:
            self._problem(field, none)
        elif name is None:
            self._problem(field, f"is missing; choose one of {', '.join(known)}")
        else:
            hint = fields.near(name, known)
            self._problem(field, f"{fields.called(name)} is none of {', '.join(known)}{hint}")
        return None

    # -- what runs

    def _runtime(self) -> str:
        default = "docker" if "image" in self.data else "process"
        return self._read("runtime", default, lambda v: fields.choice(v, RUNTIMES))

    def _image(self, runtime: str) -> str:
        image = self._read("image", "", fields.image)
        if runtime == "docker" and "image" not in self.data:
            self._problem(
                "image",
                "is missing; the docker runtime needs an image such as registry.example/me/train:1",
            )
        elif runtime == "process" and image:
            self._problem(
                "image",
                "is for the docker runtime; leave it out or set runtime to docker",
            )
        if runtime == "process" and "mounts" in self.data:
            self.warnings.append(
                "mounts: are for the docker runtime; a process sees the node's own folders"
            )
        return image

    def _command(self, runtime: str) -> tuple[str, ...]:
        none: tuple[str, ...] = ()
        command = self._read("command", none, fields.command)
        if {"script", "sbatch"} & set(self.data):
            self._check_script(runtime)
        elif not command and "command" not in self.problems:
            also = "; an image's own command is not used" if runtime == "docker" else ""
            self._problem(
                "command", f'is missing; say what to run, such as ["python", "train.py"]{also}'
            )
        elif command:
            self.warnings += shell_warnings(self.data["command"], runtime)
        return command

    def _check_script(self, runtime: str) -> None:
        for name in ("output", "error_output"):
            if name not in self.data:
                continue
            path = str(self.data[name])
            if not path.startswith("/") and "folder" not in self.data:
                self._problem(name, "is a file in the job's folder; give a folder, or a whole path")
            elif runtime == "docker" and not self._is_mounted(path):
                remedy = "mount one, or leave the file out: the log has the output"
                self._problem(name, f"is in no folder that the job mounts and may write; {remedy}")

    def _is_mounted(self, path: str) -> bool:
        """Return True if a file of a container lies in a mount that the job may write."""
        file = PurePosixPath(str(self.data.get("folder", "/"))) / path
        try:
            mounts = fields.mounts(self.data.get("mounts", []))
        except FieldError:
            return True  # the problem is noted with the mounts
        for mount in mounts:
            _, target, *mode = mount.split(":")
            if file.is_relative_to(target) and mode != ["ro"]:
                return True
        return False

    def _environment(self, team: Team | None) -> dict[str, str | dict[str, str]]:
        none: dict[str, str | dict[str, str]] = {}
        environment = self._read("environment", none, fields.environment)
        wanted = {ref["secret"]: name for name, ref in environment.items() if isinstance(ref, dict)}
        if wanted and team:
            known = set(Secret.objects.filter(team=team).values_list("name", flat=True))
            for secret in sorted(set(wanted) - known):
                have = f"; it has {', '.join(sorted(known))}" if known else "; it has none yet"
                missing = f"team {team} has no secret {fields.called(secret)}"
                self._problem("environment", f"{wanted[secret]}: {missing}{have}")
        return environment

    def _steps(self) -> tuple[int, int]:
        """Return (epochs, steps per epoch); `steps` alone is the whole job in one epoch."""
        if "steps" in self.data and {"epochs", "steps_per_epoch"} & set(self.data):
            self._problem(
                "steps", "give either steps (of the whole job) or epochs and steps_per_epoch"
            )
        if "steps" not in self.data and "steps_per_epoch" not in self.data:
            self._problem(
                "steps_per_epoch",
                "is missing; say how long the job is: steps, or epochs and steps_per_epoch",
            )
        epochs = self._read("epochs", 1, lambda v: fields.whole(v, least=1, most=MAX_EPOCHS))
        name = "steps" if "steps" in self.data else "steps_per_epoch"
        steps = self._read(name, 1, lambda v: fields.whole(v, least=1, most=MAX_STEPS))
        if epochs * steps > MAX_TOTAL_STEPS:
            self._problem(
                "steps_per_epoch", f"epochs * steps_per_epoch must be at most {MAX_TOTAL_STEPS:.0e}"
            )
        return epochs, steps

    # -- what it needs

    def _gpus(self, default: int) -> tuple[int, int]:
        if "gpus" in self.data and {"gpus_min", "gpus_max"} & set(self.data):
            self._problem("gpus", "give either gpus or gpus_min and gpus_max")
        both = self._read("gpus", (default, default), lambda v: fields.gpu_range(v, most=MAX_GPUS))
        least = self._read("gpus_min", both[0], lambda v: fields.whole(v, least=0, most=MAX_GPUS))
        upper = both[1] if "gpus" in self.data else least
        most = self._read("gpus_max", upper, lambda v: fields.whole(v, least=0, most=MAX_GPUS))
        if least == 0 < most:
            self._problem("gpus_min", "must be at least 1, or gpus_max 0")
        if least > most:
            name = "gpus" if "gpus" in self.data else "gpus_max"
            self._problem(
                name, f"the range {least}..{most} is empty; its end must not be below its beginning"
            )
        return least, most

    def _allowed_types(self) -> tuple[str, ...]:
        if "allowed_types" not in self.data:
            return ()
        known = self.inventory.gpu_types
        none: tuple[str, ...] = ()
        return self._read("allowed_types", none, lambda v: fields.gpu_types(v, known))

    def _feasible(self, cluster: Cluster, demand: Demand) -> None:
        try:
            self.warnings.extend(self.inventory.warnings(cluster, demand))
        except Infeasible as error:
            alone = error.field == "gpus" and "gpus_min" in self.data
            self._problem("gpus_min" if alone else error.field, str(error))

    # -- when

    def _times(self, zone: tzinfo) -> dict[str, datetime | None]:
        due = self._read("due", None, lambda v: fields.moment(v, now=self.now, zone=zone))
        deadline = self._read("deadline", None, lambda v: fields.moment(v, now=self.now, zone=zone))
        if due and due < self.now:
            self.warnings.append(
                f"due: {due.isoformat(timespec='seconds')} is in the past, so the job is late from"
                " the start"
            )
        if deadline and deadline < self.now:
            self._problem(
                "deadline",
                "is in the past, and nothing may run after it; give a later time or leave it out",
            )
        elif due and deadline and deadline < due:
            self.warnings.append(
                "deadline: is before the due date, so the job must end before it is due"
            )
        begin = self._read("begin", None, lambda v: fields.moment(v, now=self.now, zone=zone))
        if begin and deadline and begin >= deadline:
            self._problem("begin", "is after the deadline, so it could never run; give an earlier")
        future = begin if begin and begin > self.now else None
        return {"due_at": due, "deadline_at": deadline, "begin_at": future}

    def _waits(self, cluster: Cluster | None, array: ArraySpec | None, name: str) -> Waits:
        none = fields.Conditions({}, {})
        conditions = self._read("dependencies", none, fields.dependencies)
        if not conditions.by_reference or cluster is None:
            return Waits()
        indices = array.indices if array else None
        waits = waits_of(self.user, cluster, conditions, indices, name)
        for problem in waits.problems:
            self._problem("dependencies", problem)
        return waits
