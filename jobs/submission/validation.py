"""Validation of jobs: plain data and a user become a JobRequest, or a JobInvalid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from django.contrib.auth.models import AnonymousUser, User
from django.utils import timezone

from clusters.models import Cluster
from jobs.models import Job, Secret, Team
from jobs.selectors import visible_jobs
from jobs.submission import fields
from jobs.submission.feasibility import Demand, check_feasible
from jobs.submission.fields import FieldError
from jobs.submission.limits import Limits
from loadmaster.protocol import RUNTIMES

T = TypeVar("T")

ON_DISCONNECT = ("stop", "keep")
MAX_GPUS = 4096
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
    "steps_per_epoch", "steps",
    "gpus", "gpus_min", "gpus_max", "allowed_types", "cores", "memory_gb", "due", "deadline",
    "walltime", "tardiness_weight",
    "priority", "weight", "max_retries", "checkpoint_place", "kind", "may_mix", "may_share",
    "labels", "dependencies", "hold",
    "on_disconnect",
)  # fmt: skip
"""Every field of a job, as docs/jobs.md explains them."""


class JobInvalid(Exception):
    """The job cannot be taken; `fields` holds the messages by field."""

    def __init__(self, problems: Mapping[str, list[str]]) -> None:
        super().__init__(
            "; ".join(
                f"{name}: {message}" for name, messages in problems.items() for message in messages
            )
        )
        self.fields = {name: list(messages) for name, messages in problems.items()}


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A validated job request. `kind`: the user's name or ""; `warnings` do not stop it."""

    name: str
    cluster: Cluster
    team: Team
    runtime: str
    image: str
    command: tuple[str, ...]
    environment: dict[str, str | dict[str, str]]
    mounts: tuple[str, ...]
    epochs: int
    steps_per_epoch: int
    gpus_min: int
    gpus_max: int
    allowed_types: tuple[str, ...]
    cores: float
    memory_gb: float
    due_at: datetime | None
    deadline_at: datetime | None
    walltime_s: float | None
    tardiness_weight: float
    priority: int
    weight: float
    max_retries: int
    checkpoint_place: str
    kind: str
    may_mix: bool
    may_share: bool
    labels: tuple[str, ...]
    dependencies: tuple[Job, ...]
    hold: bool
    on_disconnect: str
    warnings: tuple[str, ...] = ()

    @property
    def total_steps(self) -> int:
        """Steps of the whole job."""
        return self.epochs * self.steps_per_epoch

    @property
    def image_digest(self) -> str:
        """What the image's name pins it to; "" where the first launch finds it out."""
        return fields.digest_of(self.image)


def validate_job(user: User, data: object, limits: Limits | None = None) -> JobRequest:
    """The job that `data` describes, for this user. Raises JobInvalid with every problem found."""
    return _Reading(user, data, limits or Limits()).request()


class _Reading:
    def __init__(self, user: User | AnonymousUser, data: object, limits: Limits) -> None:
        if not isinstance(data, dict):
            raise JobInvalid(
                {"job": [f"must be an object with the fields of a job, not {fields.called(data)}"]}
            )
        self.user = user
        self.limits = limits
        self.now = timezone.now()
        # A field that is null or left empty in a form is a field not given.
        self.data: dict[str, Any] = {
            str(k): v for k, v in data.items() if v is not None and v != ""
        }
        self.problems: dict[str, list[str]] = {}
        self.warnings: list[str] = []
        self._refuse_unknown(data)

    def request(self) -> JobRequest:
        """Everything read and held against each other."""
        cluster, team = self._cluster(), self._team()
        zone = ZoneInfo(cluster.timezone) if cluster else UTC
        epochs, steps_per_epoch = self._steps()
        gpus_min, gpus_max = self._gpus()
        types = self._allowed_types()
        runtime = self._runtime()
        values: dict[str, Any] = {
            **self._plain_fields(),
            **self._times(zone),
            "runtime": runtime,
            "image": self._image(runtime),
            "command": self._command(runtime),
            "environment": self._environment(team),
            "dependencies": self._dependencies(cluster),
        }
        if cluster and not self.problems:
            self._feasible(
                cluster,
                Demand(
                    gpus_min,
                    gpus_max,
                    types,
                    values["cores"],
                    values["memory_gb"],
                    values["labels"],
                    runtime,
                ),
            )
        if self.problems or cluster is None or team is None:
            raise JobInvalid(self.problems)
        return JobRequest(
            cluster=cluster, team=team, epochs=epochs, steps_per_epoch=steps_per_epoch,
            gpus_min=gpus_min, gpus_max=gpus_max,
            allowed_types=types, warnings=tuple(self.warnings), **values,
        )  # fmt: skip

    # -- reading
    # ------------------------------------------------------------------------------------------

    def _read(self, name: str, default: T, reader: Callable[[Any], T]) -> T:
        """The field's value or its default; a problem is noted and answered with the default."""
        if name not in self.data:
            return default
        try:
            return reader(self.data[name])
        except FieldError as error:
            self._problem(name, str(error))
            return default

    def _problem(self, name: str, message: str) -> None:
        self.problems.setdefault(name, []).append(message)

    def _refuse_unknown(self, data: dict[Any, Any]) -> None:
        for name in data:
            if name not in FIELDS:
                shown = (
                    name
                    if isinstance(name, str) and len(name) <= 60 and name.isprintable()
                    else fields.called(name)
                )
                self._problem(str(shown), f"is no field of a job{fields.near(name, FIELDS)}")

    def _plain_fields(self) -> dict[str, Any]:
        if "name" not in self.data:
            self._problem("name", "is missing; give the job a short name")
        read, none = self._read, tuple[str, ...]()
        return {
            "name": read("name", "", lambda v: fields.text(v, most=100, empty=False)),
            "mounts": read("mounts", none, fields.mounts),
            "cores": read(
                "cores", 1.0, lambda v: fields.number(v, least=0, most=MAX_CORES, above=True)
            ),
            "memory_gb": read(
                "memory_gb",
                1.0,
                lambda v: fields.number(v, least=0, most=MAX_MEMORY_GB, above=True),
            ),
            "walltime_s": read("walltime", None, fields.duration_s),
            "tardiness_weight": read(
                "tardiness_weight", 0.0, lambda v: fields.number(v, least=0, most=MAX_WEIGHT)
            ),
            "priority": read(
                "priority", 0, lambda v: fields.whole(v, least=-MAX_PRIORITY, most=MAX_PRIORITY)
            ),
            "weight": read(
                "weight", 1.0, lambda v: fields.number(v, least=0, most=MAX_WEIGHT, above=True)
            ),
            "max_retries": read(
                "max_retries", 1, lambda v: fields.whole(v, least=0, most=MAX_RETRIES)
            ),
            "checkpoint_place": read("checkpoint_place", "", lambda v: fields.text(v, most=300)),
            "kind": read("kind", "", lambda v: fields.text(v, most=100)),
            "may_mix": read("may_mix", False, fields.flag),
            "may_share": read("may_share", False, fields.flag),
            "hold": read("hold", False, fields.flag),
            "labels": read(
                "labels", none, lambda v: fields.words(v, pattern=fields.LABEL, what="labels")
            ),
            "on_disconnect": read(
                "on_disconnect", "stop", lambda v: fields.choice(v, ON_DISCONNECT)
            ),
        }

    # -- where it belongs
    # ------------------------------------------------------------------------------------------

    def _cluster(self) -> Cluster | None:
        return self._named("cluster", self.limits.clusters(), "there is no cluster yet")

    def _team(self) -> Team | None:
        return self._named(
            "team",
            self.limits.teams(self.user),
            "you are in no team yet; ask an operator to put you into one",
        )

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
            self._problem(
                field,
                f"{fields.called(name)} is none of {', '.join(known)}{fields.near(name, known)}",
            )
        return None

    # -- what runs
    # ------------------------------------------------------------------------------------------

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
                "does not go with the process runtime; leave it out or set runtime to docker",
            )
        if runtime == "process" and "mounts" in self.data:
            self.warnings.append(
                "mounts: are for the docker runtime; a process sees the node's own folders"
            )
        return image

    def _command(self, runtime: str) -> tuple[str, ...]:
        none: tuple[str, ...] = ()
        command = self._read("command", none, fields.command)
        if not command and "command" not in self.problems:
            also = "; an image's own command is not used" if runtime == "docker" else ""
            self._problem(
                "command", f'is missing; say what to run, such as ["python", "train.py"]{also}'
            )
        return command

    def _environment(self, team: Team | None) -> dict[str, str | dict[str, str]]:
        none: dict[str, str | dict[str, str]] = {}
        environment = self._read("environment", none, fields.environment)
        wanted = {ref["secret"]: name for name, ref in environment.items() if isinstance(ref, dict)}
        if wanted and team:
            known = set(Secret.objects.filter(team=team).values_list("name", flat=True))
            for secret in sorted(set(wanted) - known):
                have = f"; it has {', '.join(sorted(known))}" if known else "; it has none yet"
                self._problem(
                    "environment",
                    f"{wanted[secret]}: team {team} has no secret {fields.called(secret)}{have}",
                )
        return environment

    def _steps(self) -> tuple[int, int]:
        """(epochs, steps per epoch); `steps` alone is the whole job in one epoch."""
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
    # ------------------------------------------------------------------------------------------

    def _gpus(self) -> tuple[int, int]:
        if "gpus" in self.data and {"gpus_min", "gpus_max"} & set(self.data):
            self._problem("gpus", "give either gpus or gpus_min and gpus_max")
        both = self._read("gpus", (1, 1), lambda v: fields.gpu_range(v, most=MAX_GPUS))
        least = self._read("gpus_min", both[0], lambda v: fields.whole(v, least=1, most=MAX_GPUS))
        most = self._read(
            "gpus_max",
            both[1] if "gpus" in self.data else least,
            lambda v: fields.whole(v, least=1, most=MAX_GPUS),
        )
        if least > most:
            name = "gpus" if "gpus" in self.data else "gpus_max"
            self._problem(
                name, f"the range {least}..{most} is empty; its end must not be below its beginning"
            )
        return least, most

    def _allowed_types(self) -> tuple[str, ...]:
        if "allowed_types" not in self.data:
            return ()
        known = self.limits.gpu_types()
        none: tuple[str, ...] = ()
        return self._read("allowed_types", none, lambda v: _known_types(v, known))

    def _feasible(self, cluster: Cluster, demand: Demand) -> None:
        problems, warnings = check_feasible(cluster, demand, self.limits.seats(cluster))
        for name, message in problems.items():
            field = "gpus_min" if name == "gpus" and "gpus_min" in self.data else name
            self._problem(field, message)
        self.warnings.extend(warnings)

    # -- when
    # ------------------------------------------------------------------------------------------

    def _times(self, zone: Any) -> dict[str, datetime | None]:
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
        return {"due_at": due, "deadline_at": deadline}

    def _dependencies(self, cluster: Cluster | None) -> tuple[Job, ...]:
        none: tuple[str, ...] = ()
        ids = self._read(
            "dependencies",
            none,
            lambda v: fields.words(v, pattern=fields.JOB_ID, what="ids of jobs"),
        )
        found = (
            {str(j.pk): j for j in visible_jobs(self.user).filter(pk__in=ids, cluster=cluster)}
            if ids and cluster
            else {}
        )
        for missing in [i for i in ids if cluster and i.lower() not in found]:
            self._problem(
                "dependencies", f"there is no job {missing} that you can see in cluster {cluster}"
            )
        for over in [j for j in found.values() if j.state in ("failed", "cancelled")]:
            self.warnings.append(
                f"dependencies: job {over.pk} is {over.state}, so this one waits until it is"
                " requeued and completes"
            )
        return tuple(found.values())


def _known_types(value: object, known: list[str]) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)) or not all(isinstance(t, str) for t in given):
        raise FieldError(f"must be a list of GPU types, not {fields.called(value)}")
    for name in given:
        if name not in known:
            hint = fields.near(name, known)
            raise FieldError(
                f"{fields.called(name)} is no GPU type{hint}; known are:"
                f" {', '.join(known) or 'none yet'}"
            )
    return tuple(dict.fromkeys(given))
