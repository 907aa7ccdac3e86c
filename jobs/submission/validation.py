"""Validation of jobs: plain data of a user becomes a JobRequest, or is refused by JobInvalid."""

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
)  # fmt: skip  # a long list of names
"""Fields of a job, as in docs/jobs.md."""

STEPS = frozenset({"steps", "epochs", "steps_per_epoch"})
"""Fields of a training job; a job without any of them is a batch job."""


class JobInvalid(Exception):
    """Invalid job; `fields` holds the messages by field."""

    def __init__(self, problems: Mapping[str, list[str]]) -> None:
        sentences = []
        for name, messages in problems.items():
            sentences += [f"{name}: {message}" for message in messages]
        super().__init__("; ".join(sentences))
        self.fields = {name: list(messages) for name, messages in problems.items()}


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Validated request: unsaved `job` without owner and kind; `kind` is the user's name or "".

    `array`: its indices, if it becomes an array. Every element then waits for `dependencies`, and
    each one also for the jobs that `of_index` has for its index; with `one_suffices` for one of all
    these. `test_only`: the job is to be forecast, and not submitted.
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
        """Number of jobs that the request becomes."""
        return len(self.array.indices) if self.array else 1


def _number(most: float, *, above: bool = False) -> Callable[[object], float]:
    """Return a reader of numbers from 0, or `above` 0, to `most`."""
    return partial(fields.number, least=0, most=most, above=above)


_COUNT = partial(fields.whole, least=1, most=MAX_UNITS)

INDEPENDENT_FIELDS: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
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
"""Default and reader of each field that depends on no other one."""


def validate_job(user: User, data: object, inventory: Inventory | None = None) -> JobRequest:
    """Validate a user's job. Raises JobInvalid with every problem found."""
    return _JobReader(user, data, inventory or Inventory()).request()


class _JobReader:
    """Job being read of plain data: its fields, and the problems and warnings found so far.

    `places`: for messages, the line of a script that a field comes from.
    """

    def __init__(self, user: User | AnonymousUser, data: object, inventory: Inventory) -> None:
        if not isinstance(data, dict):
            message = f"must be an object with the fields of a job, not {fields.called(data)}"
            raise JobInvalid({"job": [message]})
        self.user = user
        self.inventory = inventory
        self.now = timezone.now()
        # A field that is null or left empty in a form is a field not given.
        self.data: dict[str, Any] = {}
        for name, value in data.items():
            if value is not None and value != "":
                self.data[str(name)] = value
        self.problems: dict[str, list[str]] = {}
        self.warnings: list[str] = []
        self.places: dict[str, str] = {}
        self.test_only = False
        for name, message in fields.unknown(data, FIELDS):
            self._problem(name, message)

    def request(self) -> JobRequest:
        """Read all fields. Raises JobInvalid with every problem found."""
        # 1. Where the job belongs; its script, whose options become fields.
        cluster = self._named("cluster", self.inventory.clusters, "there is no cluster yet")
        no_team = "only members of a team submit jobs; ask an operator to make you one"
        team = self._named("team", self.inventory.teams(self.user), no_team)
        zone = ZoneInfo(cluster.timezone) if cluster else UTC
        self._read_sbatch(zone, cluster)

        # 2. Fields that depend on no other one.
        values: dict[str, Any] = {}
        for name, (default, parse) in INDEPENDENT_FIELDS.items():
            values[name] = self._read(name, default, parse)
        if "name" not in self.data:
            self._problem("name", "is missing; give the job a short name")
        kind = values.pop("kind")
        hold = values.pop("hold")
        walltime_s = values.pop("walltime")

        # 3. Its size: steps and GPUs.
        batch = STEPS.isdisjoint(self.data)
        epochs = 1
        steps_per_epoch = 1
        if not batch:
            epochs, steps_per_epoch = self._steps()
        gpus_min, gpus_max = self._gpus(default=0 if batch else 1)
        if batch and gpus_min < gpus_max:
            rule = "a batch job (one without steps) has a fixed number of GPUs"
            self._problem("gpus", f"{rule}, not {gpus_min}..{gpus_max}")
        if team is not None:
            for name, message in above_limits({**values, "gpus_min": gpus_min}, team):
                self._problem(name, message)
        for name, message in wrong_seats(self.data, values, gpus_min, batch=batch):
            self._problem(name, message)

        # 4. How it ends. A batch job runs once: its own failure or walltime ends it.
        retries = partial(fields.whole, least=0, most=MAX_RETRIES)
        on_walltime = partial(fields.choice, known=ON_WALLTIME)
        values["max_retries"] = self._read("max_retries", 0 if batch else 1, retries)
        values["preemptible"] = self._read("preemptible", not batch, fields.flag)
        values["on_walltime"] = self._read("on_walltime", "kill" if batch else "warn", on_walltime)

        # 5. What runs, and when.
        types = self._allowed_types()
        runtime = self._runtime()
        image = self._image(runtime)
        command = self._command(runtime)
        array: ArraySpec | None = self._read("array", None, array_indices)
        environment = self._environment(team)
        waits = self._waits(cluster, array, values["name"])
        values.update(self._times(zone))

        # 6. Whether the cluster can ever hold it.
        if cluster and not self.problems:
            demand = Demand(
                gpus_min=gpus_min,
                gpus_max=gpus_max,
                allowed_types=types,
                cores=values["cores"],
                memory_gb=values["memory_gb"],
                labels=values["labels"],
                runtime=runtime,
                resources=tuple(values["resources"].items()),
                units=values["units"],
                units_per_node=values["units_per_node"],
                nodes=values["nodes"],
                batch=batch,
                may_mix=values["may_mix"],
            )
            self._check_feasible(cluster, demand)
        if values["script"] and not batch:
            self._problem("script", "is for batch jobs; leave out the steps")
        if self.problems or cluster is None or team is None:
            raise JobInvalid(self.problems)

        # 7. The job. JSON columns take lists.
        for name, value in values.items():
            if isinstance(value, tuple):
                values[name] = list(value)
        job = Job(
            cluster=cluster,
            team=team,
            runtime=runtime,
            image=image,
            image_digest=fields.digest_of(image),
            command=list(command),
            environment=environment,
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            total_steps=epochs * steps_per_epoch,
            gpus_min=gpus_min,
            gpus_max=gpus_max,
            allowed_types=list(types),
            walltime_s=walltime_s,
            batch=batch,
            **values,
        )
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

    def _read(self, name: str, default: T, parse: Callable[[Any], T]) -> T:
        """Return a field's value; its default if it is not given, or wrong: this is a problem."""
        if name not in self.data:
            return default
        try:
            return parse(self.data[name])
        except FieldError as error:
            self._problem(name, str(error))
            return default

    def _problem(self, name: str, message: str) -> None:
        """Add a problem with a field, which refuses the job."""
        place = f"{self.places[name]}: " if name in self.places else ""
        self.problems.setdefault(name, []).append(place + message)

    def _read_sbatch(self, zone: tzinfo, cluster: Cluster | None) -> None:
        """Take the fields that a script for Slurm gives; the job's own ones hold over them."""
        if "sbatch" not in self.data:
            return
        try:
            now = self.now.astimezone(zone)
            submitted = job_on_cluster(self.data, now, cluster, self.inventory)
        except ScriptError as error:
            raise JobInvalid({**self.problems, "sbatch": list(error.problems)}) from None
        for name, place in submitted.places.items():
            if name not in self.data:
                self.places[name] = place
        self.data = {**submitted.fields, **self.data}
        self.warnings += submitted.warnings
        self.test_only = submitted.test_only

    # -- where it belongs

    def _named(self, field: str, known: dict[str, T], message_if_none: str) -> T | None:
        """Return the cluster or team that a field names, or the only one that there is.

        `known`: all that the user may name. Notes a problem if no single one is meant.
        """
        name = self.data.get(field)
        if name is None and len(known) == 1:
            return next(iter(known.values()))
        if isinstance(name, str) and name in known:
            return known[name]
        if not known:
            self._problem(field, message_if_none)
        elif name is None:
            self._problem(field, f"is missing; choose one of {', '.join(known)}")
        else:
            hint = fields.near(name, known)
            self._problem(field, f"{fields.called(name)} is none of {', '.join(known)}{hint}")
        return None

    # -- what runs

    def _runtime(self) -> str:
        """Return the runtime: by default docker if there is an image, else process."""
        default = "docker" if "image" in self.data else "process"
        return self._read("runtime", default, partial(fields.choice, known=RUNTIMES))

    def _image(self, runtime: str) -> str:
        """Return the image; the docker runtime needs one, and no other runtime may have one."""
        image = self._read("image", "", fields.image)
        if runtime == "docker" and "image" not in self.data:
            example = "an image such as registry.example/me/train:1"
            self._problem("image", f"is missing; the docker runtime needs {example}")
        elif runtime == "process" and image:
            remedy = "leave it out or set runtime to docker"
            self._problem("image", f"is for the docker runtime; {remedy}")
        if runtime == "process" and "mounts" in self.data:
            reason = "a process sees the node's own folders"
            self.warnings.append(f"mounts: are for the docker runtime; {reason}")
        return image

    def _command(self, runtime: str) -> tuple[str, ...]:
        """Return the command with its arguments; of a script the arguments alone."""
        no_words: tuple[str, ...] = ()
        command = self._read("command", no_words, fields.command)
        if "script" in self.data or "sbatch" in self.data:
            self._check_files_of_script(runtime)
        elif not command and "command" not in self.problems:
            limit = "; an image's own command is not used" if runtime == "docker" else ""
            message = f'is missing; say what to run, such as ["python", "train.py"]{limit}'
            self._problem("command", message)
        elif command:
            self.warnings += shell_warnings(self.data["command"], runtime)
        return command

    def _check_files_of_script(self, runtime: str) -> None:
        """Note a problem for an output file that the script could not write."""
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
        """Return the variables; a reference to a secret that the team lacks is a problem."""
        no_variables: dict[str, str | dict[str, str]] = {}
        environment = self._read("environment", no_variables, fields.environment)
        variable_of_secret: dict[str, str] = {}
        for name, value in environment.items():
            if isinstance(value, dict):
                variable_of_secret[value["secret"]] = name
        if variable_of_secret and team:
            known = set(Secret.objects.filter(team=team).values_list("name", flat=True))
            others = f"it has {', '.join(sorted(known))}" if known else "it has none yet"
            for secret in sorted(variable_of_secret.keys() - known):
                missing = f"team {team} has no secret {fields.called(secret)}; {others}"
                self._problem("environment", f"{variable_of_secret[secret]}: {missing}")
        return environment

    def _steps(self) -> tuple[int, int]:
        """Return (epochs, steps per epoch); `steps` alone is the whole job in one epoch."""
        has_steps = "steps" in self.data
        has_steps_per_epoch = "steps_per_epoch" in self.data
        if has_steps and (has_steps_per_epoch or "epochs" in self.data):
            remedy = "give either steps (of the whole job) or epochs and steps_per_epoch"
            self._problem("steps", remedy)
        if not has_steps and not has_steps_per_epoch:
            remedy = "say how long the job is: steps, or epochs and steps_per_epoch"
            self._problem("steps_per_epoch", f"is missing; {remedy}")
        epochs = self._read("epochs", 1, partial(fields.whole, least=1, most=MAX_EPOCHS))
        name = "steps" if has_steps else "steps_per_epoch"
        steps = self._read(name, 1, partial(fields.whole, least=1, most=MAX_STEPS))
        if epochs * steps > MAX_TOTAL_STEPS:
            limit = f"epochs * steps_per_epoch must be at most {MAX_TOTAL_STEPS:.0e}"
            self._problem("steps_per_epoch", limit)
        return epochs, steps

    # -- what it needs

    def _gpus(self, default: int) -> tuple[int, int]:
        """Return the least and greatest number of GPUs; without `gpus_max` they are equal."""
        has_gpus = "gpus" in self.data
        if has_gpus and ("gpus_min" in self.data or "gpus_max" in self.data):
            self._problem("gpus", "give either gpus or gpus_min and gpus_max")
        gpu_range = partial(fields.gpu_range, most=MAX_GPUS)
        number = partial(fields.whole, least=0, most=MAX_GPUS)
        range_min, range_max = self._read("gpus", (default, default), gpu_range)
        least = self._read("gpus_min", range_min, number)
        most = self._read("gpus_max", range_max if has_gpus else least, number)
        if least == 0 and most > 0:
            self._problem("gpus_min", "must be at least 1, or gpus_max 0")
        if least > most:
            rule = "its end must not be below its beginning"
            name = "gpus" if has_gpus else "gpus_max"
            self._problem(name, f"the range {least}..{most} is empty; {rule}")
        return least, most

    def _allowed_types(self) -> tuple[str, ...]:
        """Return the GPU types that the job may have; () for all."""
        if "allowed_types" not in self.data:
            return ()
        all_types: tuple[str, ...] = ()
        known = partial(fields.gpu_types, known=self.inventory.gpu_types)
        return self._read("allowed_types", all_types, known)

    def _check_feasible(self, cluster: Cluster, demand: Demand) -> None:
        """Note a problem if the cluster's nodes can never hold the job; else take warnings."""
        try:
            self.warnings.extend(self.inventory.warnings(cluster, demand))
        except Infeasible as error:
            name = error.field
            if name == "gpus" and "gpus_min" in self.data:
                name = "gpus_min"
            self._problem(name, str(error))

    # -- when

    def _times(self, zone: tzinfo) -> dict[str, datetime | None]:
        """Return due date, deadline and begin by column; times without an offset are in `zone`."""
        moment = partial(fields.moment, now=self.now, zone=zone)
        due = self._read("due", None, moment)
        deadline = self._read("deadline", None, moment)
        if due and due < self.now:
            time = due.isoformat(timespec="seconds")
            warning = f"due: {time} is in the past, so the job is late from the start"
            self.warnings.append(warning)
        if deadline and deadline < self.now:
            reason = "is in the past, and nothing may run after it"
            self._problem("deadline", f"{reason}; give a later time or leave it out")
        elif due and deadline and deadline < due:
            warning = "deadline: is before the due date, so the job must end before it is due"
            self.warnings.append(warning)
        begin = self._read("begin", None, moment)
        if begin and deadline and begin >= deadline:
            self._problem("begin", "is after the deadline, so it could never run; give an earlier")
        future = begin if begin and begin > self.now else None
        return {"due_at": due, "deadline_at": deadline, "begin_at": future}

    def _waits(self, cluster: Cluster | None, array: ArraySpec | None, name: str) -> Waits:
        """Return the jobs and arrays for which the job, of this name, or its elements wait."""
        no_conditions = fields.Conditions({}, {})
        conditions = self._read("dependencies", no_conditions, fields.dependencies)
        if not conditions.by_reference or cluster is None:
            return Waits()
        indices = array.indices if array else None
        waits = waits_of(self.user, cluster, conditions, indices, name)
        for problem in waits.problems:
            self._problem("dependencies", problem)
        return waits
