"""Submission form: turns input into a job's data; `jobs.submission.validation` checks it."""

import shlex
from functools import partial
from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.http import QueryDict
from django.utils import timezone

from clusters.models import Cluster, GpuType
from clusters.models.clusters import Profiling
from controlplane.web import bounded_data
from controlplane.web.pages.text_forms import TypedForm, text_field
from jobs.models import Job
from jobs.roles import teams_to_submit_to
from jobs.services import job_data
from jobs.submission.validation import ON_DISCONNECT, JobInvalid
from loadmaster.features import RUNTIMES

WHOLE = (
    "epochs",
    "steps_per_epoch",
    "gpus_min",
    "gpus_max",
    "priority",
    "max_retries",
    "units",
    "units_per_node",
    "nodes",
)
REAL = ("cores", "memory_gb", "tardiness_weight", "weight")
PLAIN = (
    "name", "cluster", "team", "runtime", "image", "command", "due", "deadline", "walltime",
    "checkpoint_place", "kind", "on_disconnect", "profiling", "on_walltime", "processes", "array",
    "begin", "signal",
)  # fmt: skip  # a long list of names
FLAGS = ("may_mix", "may_share", "repeatable", "hold", "exclusive")
MAX_TYPED = 100_000


_text = partial(text_field, max_length=MAX_TYPED)
_whole = partial(_text, inputmode="numeric")
_decimal = partial(_text, inputmode="decimal")


class JobForm(TypedForm):
    """Job as typed; fields are named like validation's FIELDS, so that errors find them."""

    places = {"steps": "steps_per_epoch", "gpus": "gpus_min"}

    name = _text("Name", placeholder="resnet50-cifar")
    team = forms.ChoiceField(label="Team", required=False)
    cluster = forms.ChoiceField(label="Cluster", required=False)
    kind = _text(
        "Kind",
        "Jobs of one kind run at one speed and share its measurements. Empty: derived from image"
        " and command.",
    )

    array = _text(
        "Array",
        "A job for each index, such as 0-99:2 or 1,3,5-9; %10: at most 10 at a time. Each job"
        " reads its index from LOADMASTER_ARRAY_INDEX.",
        placeholder="0-99:2%10",
    )
    dependencies = _text(
        "Waits for",
        "Ids of jobs or arrays that must complete first; with afterany:ID, end first; with"
        " after:ID, start first. ID?ID: one of them is enough.",
    )

    runtime = forms.ChoiceField(label="Runtime", required=False, choices=[(r, r) for r in RUNTIMES])
    image = _text(
        "Image",
        "For the docker runtime. With a digest (name@sha256:...) it is pinned.",
        placeholder="registry.example/me/train:1",
    )
    command = _text(
        "Command",
        "Split into words as a shell would; an image's own command is not used.",
        placeholder="python train.py --epochs 10",
        rows=2,
    )
    environment = _text(
        "Environment",
        "One NAME=value per line; NAME=secret:name refers to a team's secret.",
        rows=3,
    )
    mounts = _text(
        "Mounts",
        "One /source:/target or /source:/target:ro per line. The nodes must allow the folders.",
        rows=2,
    )
    checkpoint_place = _text(
        "Checkpoint place",
        "An absolute folder that every node sees. Empty: the nodes' own folder of checkpoints.",
    )

    epochs = _whole("Epochs", initial="1")
    steps_per_epoch = _whole(
        "Steps per epoch",
        "Empty: a batch job, which runs once to its end and is neither measured nor moved.",
        placeholder="500",
    )
    gpus_min = _whole("GPUs, at least", initial="1")
    gpus_max = _whole("GPUs, at most", initial="1")
    allowed_types = forms.MultipleChoiceField(
        label="Allowed GPU types",
        required=False,
        help_text="None ticked: all.",
        widget=forms.CheckboxSelectMultiple,
    )
    units = _whole(
        "Units",
        "Equal parts of a batch job, each with the cores, memory and other resources below.",
        placeholder="1",
    )
    units_per_node = _whole("Units on a node, at most", "Empty: any number.")
    nodes = _whole("Number of nodes", "Nodes that the units are spread over. Empty: any number.")
    processes = forms.ChoiceField(
        label="Its command runs on",
        required=False,
        choices=[("", "the first of its nodes"), ("each", "each of its nodes")],
    )
    cores = _decimal("CPU cores", initial="1")
    memory_gb = _decimal("Memory (GB)", initial="1")
    labels = _text("Data labels", "The node must have them all, e.g. imagenet, cifar10.")

    due = _text(
        "Due",
        "A time such as 2030-01-31T18:00 in the cluster's zone, or +2h from now.",
        placeholder="+2h",
    )
    tardiness_weight = _decimal(
        "Cost of lateness per second", "In the cluster's currency.", initial="0"
    )
    deadline = _text("Deadline", "The job is ended at this time.")
    begin = _text("Not before", "The job does not start earlier.")
    signal = _text(
        "Signal before its end", "Such as USR1@120, or B:USR1@120 to its first process alone."
    )
    walltime = _text("Longest run time", "Such as 1h30m.")
    on_walltime = forms.ChoiceField(
        label="When it has run that long",
        required=False,
        choices=[("", "end it if it is a batch job"), ("kill", "end it"), ("warn", "only warn")],
    )
    resources = _text("Other resources", "Such as mic=2, as the nodes offer them.")
    priority = _whole("Priority", "Higher goes first, if the policy uses priorities.", initial="0")
    weight = _decimal("Fair share weight", initial="1")
    max_retries = _whole("Retries", "After its own failures. Empty: 1, for a batch job 0.")
    on_disconnect = forms.ChoiceField(
        label="When its node is cut off", required=False, choices=[(c, c) for c in ON_DISCONNECT]
    )
    may_mix = forms.BooleanField(label="May mix GPU types", required=False)
    may_share = forms.BooleanField(label="May share a GPU", required=False)
    profiling = forms.ChoiceField(
        label="Measuring its speed",
        required=False,
        choices=[("", "as the cluster does"), *Profiling.choices],
    )
    repeatable = forms.BooleanField(
        label="Its command may run more than once, to measure its speed", required=False
    )
    exclusive = forms.BooleanField(label="No other job on its node", required=False)
    preemptible = forms.ChoiceField(
        label="May be stopped and go on elsewhere",
        required=False,
        choices=[("", "yes if it is a training job"), ("true", "yes"), ("false", "no")],
    )
    hold = forms.BooleanField(label="Hold until released", required=False)

    def __init__(self, user: User, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        teams = list(teams_to_submit_to(user).values_list("name", flat=True))
        clusters = list(Cluster.objects.order_by("name").values_list("name", flat=True))
        self.choose("team", zip(teams, teams, strict=True))
        self.choose("cluster", zip(clusters, clusters, strict=True))
        types = GpuType.objects.order_by("name")
        self.choose("allowed_types", [(t.name, str(t)) for t in types])

    def data_of_job(self) -> dict[str, Any]:
        """Return input as a job's data; text that is no number stays text for validation."""
        typed = {name: self.data.get(name, "") for name in self.fields}
        data: dict[str, Any] = {name: typed[name].strip() for name in PLAIN}
        data |= {name: _number(typed[name], int) for name in WHOLE}
        data |= {name: _number(typed[name], float) for name in REAL}
        data |= {name: True for name in FLAGS if typed[name]}
        data["environment"] = _environment(typed["environment"])
        data["mounts"] = _lines(typed["mounts"])
        data["resources"] = _resources(typed["resources"])
        if typed["preemptible"]:
            data["preemptible"] = typed["preemptible"] == "true"
        if not typed["steps_per_epoch"].strip():
            del data["epochs"]  # a batch job, which has none
        for name in ("labels", "dependencies"):
            data[name] = typed[name].replace(",", " ").split()
        if isinstance(self.data, QueryDict):
            data["allowed_types"] = self.data.getlist("allowed_types")
        return {name: value for name, value in data.items() if value not in ("", None, [], {})}


def initial_of(job: Job) -> dict[str, Any]:
    """Return initial values for another job like this one."""
    data = job_data(job)
    data["command"] = shlex.join(job.command)
    data["environment"] = "\n".join(f"{n}={_variable(v)}" for n, v in job.environment.items())
    data["mounts"] = "\n".join(job.mounts)
    data["labels"] = ", ".join(job.labels)
    data["dependencies"] = " ".join(data.get("dependencies", ()))
    data["resources"] = ", ".join(f"{name}={of:g}" for name, of in job.resources.items())
    data["preemptible"] = "true" if job.preemptible else "false"
    data["due"] = data["deadline"] = data["begin"] = ""
    if job.due_at and job.due_at > timezone.now():
        data["due"] = job.due_at.isoformat(timespec="minutes")
    return data


def read_yaml(text: str) -> Any:
    """Parse a pasted job.yaml. Raises JobInvalid with the line of bad YAML."""
    if len(text) > MAX_TYPED:
        raise JobInvalid({"yaml": [f"must have at most {MAX_TYPED} characters"]})
    try:
        return bounded_data.read_yaml(text)
    except ValueError as error:
        raise JobInvalid({"yaml": [str(error)]}) from None


def _number(typed: str, kind: type[int] | type[float]) -> Any:
    typed = typed.strip()
    try:
        return kind(typed) if len(typed) < 30 else typed
    except ValueError:
        return typed


def _resources(typed: str) -> dict[str, Any]:
    pairs = (part.partition("=") for part in typed.replace(",", " ").split())
    return {name: _number(amount, float) for name, _, amount in pairs}


def _lines(typed: str) -> list[str]:
    return [line.strip() for line in typed.splitlines() if line.strip()]


def _environment(typed: str) -> dict[str, Any]:
    environment: dict[str, Any] = {}
    for line in _lines(typed):
        name, _, value = line.partition("=")
        secret = value.removeprefix("secret:").strip()
        environment[name.strip()] = {"secret": secret} if value.startswith("secret:") else value
    return environment


def _variable(value: Any) -> str:
    return f"secret:{value['secret']}" if isinstance(value, dict) else str(value)
