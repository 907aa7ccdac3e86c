"""Simulations as REST shows them."""

from typing import Any

from drf_spectacular.utils import inline_serializer
from rest_framework import serializers

from controlplane.studies.models import Simulation
from controlplane.studies.selectors import link_of
from controlplane.web.rest.bodies import OnlySettable
from jobs.rest.serializers import RunTimeSerializer

STATES = Simulation.State.choices

CLUSTER = (
    'What a cluster file holds (docs/workloads.md), or {"live": "name"}: the cluster of that name'
    " as it is now"
)
WORKLOAD = (
    'By `type`: a generator, a trace as `text`, {"type": "history", "cluster": "name", "days": 7},'
    ' or {"type": "queue"}: what waits and runs now'
)
POLICY: dict[str, serializers.Field[Any, Any, Any, Any]] = {
    "name": serializers.CharField(),
    "parameters": serializers.DictField(required=False),
    "label": serializers.CharField(required=False),
}


class StudyInput(serializers.Serializer[Any]):
    """A study to run."""

    name = serializers.CharField(required=False, max_length=100)
    team = serializers.CharField(required=False, help_text="A team of yours that sees it too")
    cluster = serializers.DictField(help_text=CLUSTER)
    workload = serializers.DictField(help_text=WORKLOAD)
    policies = inline_serializer(
        "SimulatedPolicy",
        POLICY,
        many=True,
        help_text="Policies to compare: name, parameters, label",
    )
    seeds = serializers.ListField(
        child=serializers.IntegerField(min_value=0),
        required=False,
        help_text="Each policy runs once per seed",
    )
    switches = serializers.DictField(
        child=serializers.JSONField(),
        required=False,
        help_text="What may fail or take time; all of it off by default",
    )
    skip_bad = serializers.BooleanField(
        required=False, help_text="Leave bad lines of a trace out instead of refusing it"
    )


class SimulationSerializer(serializers.ModelSerializer[Simulation]):
    """A simulation; `summary` says in short what is simulated."""

    user = serializers.CharField(source="user.username")
    team = serializers.SerializerMethodField()
    state = serializers.ChoiceField(choices=STATES)
    share = serializers.SerializerMethodField()
    summary = serializers.DictField()

    class Meta:
        model = Simulation
        fields = [
            "id", "name", "user", "team", "state", "progress", "left_s", "message", "summary",
            "share", "created_at", "started_at",
            "ended_at",
        ]  # fmt: skip  # a long list of names
        read_only_fields = fields

    def get_team(self, simulation: Simulation) -> str | None:
        """The team that sees it too."""
        return None if simulation.team is None else simulation.team.name

    def get_share(self, simulation: Simulation) -> str:
        """The last part of its share link; empty while it is not shared."""
        return link_of(simulation)


class SimulationDetailSerializer(SimulationSerializer):
    """A simulation with its study, including what came from live clusters."""

    document = serializers.SerializerMethodField()

    class Meta(SimulationSerializer.Meta):
        fields = [*SimulationSerializer.Meta.fields, "document"]

    def get_document(self, simulation: Simulation) -> dict[str, Any]:
        """The study; empty for a what-if, whose snapshot has other teams' jobs."""
        return {} if simulation.is_what_if else dict(simulation.document)


class WhatIfInput(OnlySettable, serializers.Serializer[Any]):
    """A policy to be asked."""

    policy = serializers.CharField(max_length=100)
    parameters = serializers.DictField(required=False)


class ChoiceInput(OnlySettable, serializers.Serializer[Any]):
    """Differences from the cluster as it is: policy, parameters, value of time."""

    policy = serializers.CharField(max_length=100, required=False)
    parameters = serializers.DictField(required=False)
    value_of_time = serializers.FloatField(
        required=False, help_text="Value of an hour that a job waits, in the cluster's currency"
    )


class QueueEndInput(OnlySettable, serializers.Serializer[Any]):
    """Choices to compare with the present one, 1 to 7 of them."""

    choices = ChoiceInput(many=True)


class DecisionSerializer(serializers.Serializer[Any]):
    """Figures of a decision in the cluster's currency; run times as policies know them."""

    policy = serializers.CharField()
    status = serializers.CharField()
    running = serializers.IntegerField(help_text="Jobs that have GPUs")
    waiting = serializers.IntegerField(help_text="Jobs that have no GPUs")
    gpus = serializers.IntegerField(help_text="GPUs in use")
    power_w = serializers.FloatField(help_text="IT power of the nodes in use")
    cost_per_h = serializers.FloatField(
        allow_null=True, help_text="Energy cost per hour at the present price"
    )
    energy_cost = serializers.FloatField(
        help_text="Energy cost of the jobs with GPUs, until each ends"
    )
    energy_cost_waiting = serializers.FloatField(
        help_text="Energy cost of the waiting jobs, if each started alone now where it is cheapest"
    )
    tardiness_cost = serializers.FloatField(help_text="Tardiness cost of the jobs with GPUs")
    tardiness_cost_waiting = serializers.FloatField(
        help_text="Tardiness cost of the waiting jobs, if each started now where it is fastest"
    )


class DifferenceSerializer(serializers.Serializer[Any]):
    """A job that the policy decides differently; anonymous if another team's."""

    job = serializers.CharField(allow_null=True)
    name = serializers.CharField()
    change = serializers.ChoiceField(choices=["start", "preempt", "migrate", "resize"])
    before = serializers.CharField(allow_blank=True)
    after = serializers.CharField(allow_blank=True)
    why = serializers.CharField(allow_blank=True, help_text="Why it would wait")


class WhatIfSerializer(serializers.Serializer[Any]):
    """A policy's decision beside the present. Nothing was changed."""

    cluster = serializers.CharField()
    currency = serializers.CharField()
    at = serializers.DateTimeField()
    failure = serializers.CharField(
        allow_null=True, help_text="Why the policy could not decide; then everything stays"
    )
    current = DecisionSerializer()
    proposed = DecisionSerializer()
    differences = DifferenceSerializer(many=True)


class StartSerializer(serializers.Serializer[Any]):
    """A change that starts the job now: what it displaces, and the command that makes it."""

    code = serializers.CharField()
    words = serializers.CharField()
    effect = serializers.CharField()
    displaced = serializers.ListField(child=serializers.CharField())
    hidden = serializers.IntegerField(help_text="Displaced jobs of other teams")
    command = serializers.CharField(help_text="Empty if nothing needs to be changed")


class SubmissionForecastSerializer(serializers.Serializer[Any]):
    """Expected start of a job that is not submitted."""

    starts_now = serializers.BooleanField()
    start = serializers.DateTimeField(allow_null=True, help_text="null where it is not known")
    nodes = serializers.ListField(child=serializers.CharField())
    cores = serializers.FloatField()
    gpus = serializers.IntegerField()
    reason = serializers.CharField(help_text="Why it would not start at once")
    run_time = RunTimeSerializer(allow_null=True, help_text="null where it is known")
    warnings = serializers.ListField(child=serializers.CharField())


class StartNowSerializer(serializers.Serializer[Any]):
    """Changes that start a waiting job now, the one that displaces the fewest jobs first."""

    starts = StartSerializer(many=True)
    tried = serializers.ListField(child=serializers.CharField())
    not_tried = serializers.ListField(
        child=serializers.CharField(), help_text="Changes that were not tried in time"
    )
    note = serializers.CharField(help_text="Why nothing could be tried")
