"""Serializers of jobs. `jobs.submission.validation` checks input; JobInput only documents it."""

from datetime import datetime, timedelta
from typing import Any, cast

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from clusters.models.clusters import Profiling
from jobs.forecasts.intervals import Group
from jobs.logs import MAX_PIECE, MIN_PIECE, PIECE, STREAMS
from jobs.models import Assignment, Attempt, Job, JobEvent
from jobs.selectors import fraction_of
from jobs.services import job_data
from jobs.wording.explanation import explain
from loadmaster.protocol import AssignmentState
from loadmaster.slurm.options.reading import MAX_SCRIPT
from policies.contract.snapshot import Purpose

LONGEST_REMAINING_S = 1e9
"""Seconds until a job's end beyond which none is shown."""


class PlacementSerializer(serializers.Serializer[Any]):
    """Where one rank of a job is now."""

    assignment = serializers.UUIDField(source="pk")
    node = serializers.CharField(source="node.name")
    gpu_type = serializers.CharField(source="node.type_name")
    emulated = serializers.SerializerMethodField()
    gpus = serializers.IntegerField()
    units = serializers.IntegerField()
    devices = serializers.SerializerMethodField()
    rank = serializers.IntegerField()
    purpose = serializers.CharField()
    state = serializers.CharField()
    since = serializers.DateTimeField(source="created_at")

    def get_emulated(self, assignment: Assignment) -> bool:
        return assignment.node.is_emulated

    def get_devices(self, assignment: Assignment) -> list[str]:
        return _devices(assignment)


class ProgressSerializer(serializers.Serializer[Any]):
    """A job's progress; `fraction` of its steps, `eta`: its end at the present speed."""

    steps_done = serializers.IntegerField()
    total_steps = serializers.IntegerField()
    checkpoint_steps = serializers.IntegerField()
    fraction = serializers.FloatField()
    steps_per_s = serializers.FloatField(allow_null=True)
    eta = serializers.DateTimeField(allow_null=True)
    first_loss = serializers.FloatField(allow_null=True)
    last_loss = serializers.FloatField(allow_null=True)


class ExpectedSerializer(serializers.Serializer[Any]):
    """Expected start of a waiting job: in four of five cases it starts between `low` and `high`.

    `end` is null if unknown; `position` in its cluster's queue, by expected starts, from 1.
    """

    start = serializers.DateTimeField()
    low = serializers.DateTimeField()
    high = serializers.DateTimeField()
    end = serializers.DateTimeField(allow_null=True)
    nodes = serializers.ListField(child=serializers.CharField())
    gpus = serializers.IntegerField()
    position = serializers.IntegerField()


class RunTimeSerializer(serializers.Serializer[Any]):
    """Run time of a job that no run and no walltime tells, from jobs that have ended.

    80% of these ran between `low_s` and `high_s`; both are null of fewer than 20 jobs.
    """

    low_s = serializers.FloatField(allow_null=True)
    high_s = serializers.FloatField(allow_null=True)
    jobs = serializers.IntegerField(help_text="Number of ended jobs behind the interval")
    group = serializers.ChoiceField(
        choices=[str(group) for group in Group],
        allow_null=True,
        help_text="Which jobs: of one user or team only those with as many GPUs and of one sort",
    )
    words = serializers.CharField(
        help_text="Such as between 4 min and 2 h, as 80% of 57 jobs on this cluster"
    )


class FirstForecastSerializer(serializers.Serializer[Any]):
    """First forecast of a start: the job started `later_s` seconds later than that."""

    start = serializers.DateTimeField()
    made = serializers.DateTimeField()
    later_s = serializers.FloatField()
    inside = serializers.BooleanField(help_text="Whether it started in the forecast's interval")


class FactSerializer(serializers.Serializer[Any]):
    """Names or values of one sort in full, such as all nodes in question."""

    heading = serializers.CharField()
    text = serializers.CharField()


class WaitingSerializer(serializers.Serializer[Any]):
    """Why a job does not run: a code for programs; a sentence, what helps, and all facts."""

    code = serializers.CharField()
    reason = serializers.CharField()
    expected = ExpectedSerializer(allow_null=True)
    start_unknown = serializers.CharField(help_text="Why no start is expected, where that is known")
    remedy = serializers.CharField()
    facts = FactSerializer(many=True)


# Shared, because a list would make one of each for every job.
_PLACEMENT = PlacementSerializer()
_EXPECTED = ExpectedSerializer()
_FIRST_FORECAST = FirstForecastSerializer()
_RUN_TIME = RunTimeSerializer()


class ElementSerializer(serializers.Serializer[Any]):
    """The array that a job is an element of; `states` in folded lists: elements by state."""

    id = serializers.UUIDField()
    number = serializers.IntegerField()
    index = serializers.IntegerField()
    indices = serializers.CharField()
    at_once = serializers.IntegerField(allow_null=True)
    size = serializers.IntegerField()
    states = serializers.DictField(child=serializers.IntegerField())


class JobSerializer(serializers.ModelSerializer[Job]):
    """A job in a list."""

    cluster = serializers.CharField(source="cluster.name")
    team = serializers.CharField(source="team.name")
    user = serializers.CharField(source="user.username")
    kind = serializers.CharField(source="kind.__str__")
    due = serializers.DateTimeField(source="due_at", allow_null=True)
    deadline = serializers.DateTimeField(source="deadline_at", allow_null=True)
    begin = serializers.DateTimeField(source="begin_at", allow_null=True)
    progress = serializers.SerializerMethodField()
    placement = serializers.SerializerMethodField()
    waiting = serializers.SerializerMethodField()
    run_time = serializers.SerializerMethodField()
    array = serializers.SerializerMethodField()

    class Meta:
        model = Job
        fields = [
            "id", "number", "name", "cluster", "team", "user", "state", "kind", "gpus_min",
            "gpus_max", "priority", "tardiness_weight", "due", "deadline", "begin", "submitted_at",
            "started_at", "completed_at", "hold_wanted", "failure_reason", "progress", "placement",
            "waiting", "run_time", "array",
        ]  # fmt: skip  # a long list of names

    @extend_schema_field(ElementSerializer(allow_null=True))
    def get_array(self, job: Job) -> dict[str, Any] | None:
        """Its array and index; null for a single job."""
        if job.array is None:
            return None
        return {
            "id": str(job.array.pk),
            "number": job.array.number,
            "index": job.array_index,
            "indices": job.array.indices,
            "at_once": job.array.at_once,
            "size": job.array.size,
            "states": self.context.get("states", {}).get(job.array.pk, {}),
        }

    @extend_schema_field(ProgressSerializer)
    def get_progress(self, job: Job) -> dict[str, Any]:
        """The job's progress."""
        return progress_of(job, _live(job), timezone.now())

    @extend_schema_field(PlacementSerializer(many=True))
    def get_placement(self, job: Job) -> list[dict[str, Any]]:
        """Its ranks' places; empty for a job that is nowhere."""
        return [dict(_PLACEMENT.to_representation(assignment)) for assignment in _live(job)]

    @extend_schema_field(WaitingSerializer(allow_null=True))
    def get_waiting(self, job: Job) -> dict[str, Any] | None:
        """Code, reason and expected start; null for a job that runs or is over."""
        names = self.context.get("names", {})
        explanation = explain(
            job.state, job.waiting_code, job.waiting_detail, names, timezone.now()
        )
        if not explanation.sentence:
            return None
        expected = self.context.get("expected", {}).get(job.pk)
        return {
            "code": job.waiting_code or job.state,
            "reason": explanation.sentence,
            "remedy": explanation.remedy,
            "facts": [{"heading": heading, "text": text} for heading, text in explanation.lists],
            "expected": None if expected is None else _EXPECTED.to_representation(expected),
            "start_unknown": self.context.get("start_unknown", {}).get(job.pk, ""),
        }

    @extend_schema_field(RunTimeSerializer(allow_null=True))
    def get_run_time(self, job: Job) -> dict[str, Any] | None:
        """Interval of an unknown run time; null if it is known, and in answers to submissions."""
        run_time = self.context.get("run_times", {}).get(job.pk)
        return None if run_time is None else dict(_RUN_TIME.to_representation(run_time))


class JobDetailSerializer(JobSerializer):
    """A job by itself, with its description as it could be submitted again (secrets by name)."""

    spec = serializers.SerializerMethodField()
    total_steps = serializers.IntegerField()
    first_forecast = serializers.SerializerMethodField()

    class Meta(JobSerializer.Meta):
        fields = [
            *JobSerializer.Meta.fields, "total_steps", "first_forecast", "fence", "retries_used",
            "max_retries", "retry_at", "image_digest", "received_s", "cloned_from", "spec",
        ]  # fmt: skip  # a long list of names

    @extend_schema_field(FirstForecastSerializer(allow_null=True))
    def get_first_forecast(self, job: Job) -> dict[str, Any] | None:
        """The start that was forecast first, and how far off it was; null until it starts."""
        forecast = self.context.get("first_forecast")
        return None if forecast is None else dict(_FIRST_FORECAST.to_representation(forecast))

    def get_spec(self, job: Job) -> dict[str, Any]:
        """The job file that makes this job again."""
        return job_data(job, self.context.get("dependencies_of", {}).get(job.pk))


class SubmissionSerializer(JobDetailSerializer):
    """The answer to a submission: the job, and warnings."""

    warnings = serializers.SerializerMethodField()

    class Meta(JobDetailSerializer.Meta):
        fields = [*JobDetailSerializer.Meta.fields, "warnings"]

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_warnings(self, job: Job) -> list[str]:
        """Sentences that name a field; the job was taken nevertheless."""
        return list(self.context.get("warnings_of", {}).get(job.pk, ()))


class JobInput(serializers.Serializer[Any]):
    """A job to be submitted; docs/jobs.md explains every field."""

    name = serializers.CharField(max_length=100)
    cluster = serializers.CharField(help_text="May be left out if there is only one")
    team = serializers.CharField(help_text="May be left out by members of one team")
    runtime = serializers.ChoiceField(choices=["process", "docker"])
    image = serializers.CharField(
        max_length=300, help_text="Such as registry.example/me/train:1, or name@sha256:..."
    )
    command = serializers.JSONField(
        help_text="A list of strings, or one string that is split as a shell would"
    )
    environment = serializers.JSONField(
        help_text='{"NAME": "value"} or {"NAME": {"secret": "team secret"}}'
    )
    mounts = serializers.ListField(
        child=serializers.CharField(), help_text="/source:/target or /source:/target:ro"
    )
    steps = serializers.IntegerField(
        min_value=1,
        help_text="Steps of the whole job; or give epochs and steps_per_epoch; none: a batch job",
    )
    epochs = serializers.IntegerField(min_value=1)
    steps_per_epoch = serializers.IntegerField(min_value=1)
    gpus = serializers.JSONField(help_text='A number or "least..most"; or gpus_min and gpus_max')
    gpus_min = serializers.IntegerField(min_value=0)
    gpus_max = serializers.IntegerField(min_value=0)
    allowed_types = serializers.ListField(child=serializers.CharField())
    cores = serializers.FloatField()
    memory_gb = serializers.FloatField()
    due = serializers.CharField(
        help_text="ISO 8601 (without an offset: in the cluster's time zone), or +2h from now"
    )
    deadline = serializers.CharField(help_text="Time as in due; the job is ended then")
    begin = serializers.CharField(help_text="Time as in due; the job does not start before")
    walltime = serializers.JSONField(help_text="Seconds, or a duration such as 1h30m")
    on_walltime = serializers.ChoiceField(choices=["kill", "warn"])
    signal = serializers.CharField(max_length=40, help_text="Sent before its end: B:USR1@60")
    tardiness_weight = serializers.FloatField(
        help_text="Cost per second after due, in the cluster's currency"
    )
    priority = serializers.IntegerField()
    weight = serializers.FloatField()
    max_retries = serializers.IntegerField(min_value=0)
    checkpoint_place = serializers.CharField(max_length=300)
    kind = serializers.CharField(max_length=100)
    may_mix = serializers.BooleanField()
    may_share = serializers.BooleanField()
    profiling = serializers.ChoiceField(choices=["", *Profiling.values])
    repeatable = serializers.BooleanField()
    resources = serializers.JSONField(help_text='Other named resources, such as {"mic": 2}')
    exclusive = serializers.BooleanField(help_text="No other job is on its node")
    units = serializers.IntegerField(
        min_value=1, help_text="Equal parts of a batch job, each with cores, memory_gb, resources"
    )
    units_per_node = serializers.IntegerField(min_value=1, help_text="Most units on a node")
    nodes = serializers.IntegerField(min_value=1, help_text="Nodes that its units are spread over")
    processes = serializers.ChoiceField(
        choices=["first", "each"], help_text="Runs on the first of its nodes, or on each"
    )
    preemptible = serializers.BooleanField(
        help_text="Default: true for training jobs, false for batch jobs"
    )
    labels = serializers.ListField(child=serializers.CharField())
    dependencies = serializers.ListField(
        child=serializers.CharField(),
        help_text="Ids of jobs, arrays or elements (ID_3), or afterany:ID, afternotok:ID,"
        " after:ID+MINUTES; ID?ID: one of them",
    )
    array = serializers.CharField(
        help_text="Indices such as 0-99:2 or 1,3,5-9: a job for each; %10: at most 10 at a time"
    )
    script = serializers.CharField(
        max_length=MAX_SCRIPT, help_text="Text of a script, run with the command as its arguments"
    )
    folder = serializers.CharField(max_length=1000, help_text="Folder on the node to run it in")
    output = serializers.CharField(
        max_length=1000, help_text="File on the node for its output, with Slurm's %j, %A, %a, %x"
    )
    error_output = serializers.CharField(
        max_length=1000, help_text="File for its errors; default: that of its output"
    )
    sbatch = serializers.JSONField(
        help_text='{"script": text, "options": ["-n", "4"], "arguments": [], "folder": "/home/me"}'
    )
    hold = serializers.BooleanField()
    on_disconnect = serializers.ChoiceField(choices=["stop", "keep"])

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Only the name must be given."""
        fields = super().get_fields()
        for name, field in fields.items():
            field.required = name == "name"
        return fields


class JobEventSerializer(serializers.ModelSerializer[JobEvent]):
    """Something that happened to a job."""

    class Meta:
        model = JobEvent
        fields = ["id", "at", "event", "from_state", "to_state", "data", "actor"]


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    """A try of a job."""

    class Meta:
        model = Attempt
        fields = ["number", "started_at", "ended_at", "outcome", "reason_class", "reason"]


class AssignmentSerializer(serializers.ModelSerializer[Assignment]):
    """A placement of a job that was committed, past or present."""

    node = serializers.CharField(source="node.name")
    gpu_type = serializers.CharField(source="node.type_name")
    devices = serializers.SerializerMethodField()

    class Meta:
        model = Assignment
        fields = [
            "id", "node", "gpu_type", "devices", "purpose", "copy", "rank", "world_size", "units",
            "gpus", "fence", "state", "desired", "container", "prepared_fraction", "created_at",
            "running_at", "ended_at", "exit_code", "reason_class", "reason", "start_steps",
            "steps_done", "checkpoint_steps", "steps_per_s", "loss", "setup_s", "predicted_run_s",
            "predicted_source", "predicted_steps_per_s", "predicted_energy_cost", "energy_kwh",
            "energy_cost", "power_source",
        ]  # fmt: skip  # a long list of names

    def get_devices(self, assignment: Assignment) -> list[str]:
        return _devices(assignment)


class LogQuery(serializers.Serializer[Any]):
    """A wanted piece of a log."""

    stream = serializers.ChoiceField(
        choices=STREAMS,
        default="stdout",
        error_messages={"invalid_choice": f"must be {' or '.join(STREAMS)}"},
    )
    cursor = serializers.CharField(
        default="",
        allow_blank=True,
        help_text="Cursor of the previous answer; leave it out to begin",
    )
    offset = serializers.IntegerField(
        default=None,
        min_value=-(2**62),
        max_value=2**62,
        help_text="Byte to begin with; a negative one counts from the end",
    )
    rank = serializers.IntegerField(default=0, min_value=0, max_value=100_000)
    limit = serializers.IntegerField(
        default=PIECE, min_value=MIN_PIECE, max_value=MAX_PIECE, help_text="Bytes at most"
    )


class LogSerializer(serializers.Serializer[Any]):
    """A piece of a log and the cursor for the next one."""

    text = serializers.CharField()
    cursor = serializers.CharField()
    done = serializers.BooleanField(help_text="The job is over and all of it is read")


def progress_of(job: Job, live: list[Assignment], now: datetime) -> dict[str, Any]:
    """Return a job's progress; `live`: its assignments, of which the fastest tells the speed."""
    # 1. Its speed, and its end if it keeps that speed.
    steps_per_s = 0.0
    for assignment in live:
        is_training = assignment.purpose == Purpose.TRAINING
        if is_training and assignment.state == AssignmentState.RUNNING:
            steps_per_s = max(steps_per_s, assignment.steps_per_s or 0.0)
    end = None
    if steps_per_s > 0:
        remaining_s = (job.total_steps - job.steps_done) / steps_per_s
        if 0 <= remaining_s < LONGEST_REMAINING_S:
            end = now + timedelta(seconds=remaining_s)

    # 2. Its progress.
    return {
        "steps_done": job.steps_done,
        "total_steps": job.total_steps,
        "checkpoint_steps": job.checkpoint_steps,
        "fraction": fraction_of(job),
        "steps_per_s": steps_per_s or None,
        "eta": end,
        "first_loss": job.first_loss,
        "last_loss": job.last_loss,
    }


def _live(job: Job) -> list[Assignment]:
    """Return the assignments of a job that `listed_jobs` has read; none of a job just created."""
    return cast("list[Assignment]", getattr(job, "live_assignments", []))


def _devices(assignment: Assignment) -> list[str]:
    """Return the UUIDs of an assignment's devices."""
    return [slot.device.uuid for slot in assignment.slots.all()]
