"""Simulations as REST shows them."""

from typing import Any

from drf_spectacular.utils import inline_serializer
from rest_framework.serializers import (
    BooleanField,
    CharField,
    ChoiceField,
    DateTimeField,
    DictField,
    Field,
    FloatField,
    IntegerField,
    ListField,
    ModelSerializer,
    Serializer,
    SerializerMethodField,
)

from controlplane.studies.models import Simulation
from controlplane.studies.selectors import link_of

STATES = Simulation.State.choices

CLUSTER = (
    'What a cluster file holds (docs/workloads.md), or {"live": "name"}: the cluster of that name'
    " as it is now"
)
WORKLOAD = (
    'By `type`: a generator, a trace as `text`, {"type": "history", "cluster": "name", "days": 7},'
    ' or {"type": "queue"}: what waits and runs now'
)
POLICY: dict[str, Field[Any, Any, Any, Any]] = {
    "name": CharField(),
    "parameters": DictField(required=False),
    "label": CharField(required=False),
}


class StudyInput(Serializer[Any]):
    """A study to run."""

    name = CharField(required=False, max_length=100)
    team = CharField(required=False, help_text="A team of yours that sees it too")
    cluster = DictField(help_text=CLUSTER)
    workload = DictField(help_text=WORKLOAD)
    policies = inline_serializer(
        "SimulatedPolicy",
        POLICY,
        many=True,
        help_text="Policies to compare: name, parameters, label",
    )
    seeds = ListField(
        child=IntegerField(min_value=0),
        required=False,
        help_text="Each policy is run once for each of them",
    )
    switches = DictField(
        child=FloatField(),
        required=False,
        help_text="What may fail or take time; all of it off by default",
    )
    skip_bad = BooleanField(
        required=False, help_text="Leave bad lines of a trace out in place of refusing it"
    )


class SimulationSerializer(ModelSerializer[Simulation]):
    """A simulation; `summary` says in short what is simulated."""

    user = CharField(source="user.username")
    team = SerializerMethodField()
    state = ChoiceField(choices=STATES)
    share = SerializerMethodField()
    summary = DictField()

    class Meta:
        model = Simulation
        fields = [
            "id", "name", "user", "team", "state", "progress", "left_s", "message", "summary",
            "share", "created_at", "started_at",
            "ended_at",
        ]  # fmt: skip
        read_only_fields = fields

    def get_team(self, simulation: Simulation) -> str | None:
        """The team that sees it too."""
        return None if simulation.team is None else simulation.team.name

    def get_share(self, simulation: Simulation) -> str:
        """The last part of its share link; empty while it is not shared."""
        return link_of(simulation)


class SimulationDetailSerializer(SimulationSerializer):
    """A simulation with its study, including what came from live clusters."""

    document = DictField()

    class Meta(SimulationSerializer.Meta):
        fields = [*SimulationSerializer.Meta.fields, "document"]


class WhatIfInput(Serializer[Any]):
    """A policy to be asked."""

    policy = CharField(max_length=100)
    parameters = DictField(required=False)


class DecisionSerializer(Serializer[Any]):
    """Figures of a decision in the cluster's currency; run times as policies know them."""

    policy = CharField()
    status = CharField()
    running = IntegerField(help_text="Jobs that have GPUs")
    waiting = IntegerField(help_text="Jobs that have none")
    gpus = IntegerField(help_text="GPUs in use")
    power_w = FloatField(help_text="IT power of the nodes in use")
    cost_per_h = FloatField(allow_null=True, help_text="Energy cost per hour at the present price")
    energy_cost = FloatField(help_text="Energy of the jobs that have GPUs, until each ends")
    energy_cost_waiting = FloatField(
        help_text="Energy of the others, could each start alone now where it is cheapest"
    )
    tardiness_cost = FloatField(help_text="Lateness of those jobs")
    tardiness_cost_waiting = FloatField(
        help_text="Lateness of the others, could each start now where it is fastest"
    )


class DifferenceSerializer(Serializer[Any]):
    """A job that the policy decides differently; anonymous if another team's."""

    job = CharField(allow_null=True)
    name = CharField()
    change = ChoiceField(choices=["start", "preempt", "migrate", "resize"])
    before = CharField(allow_blank=True)
    after = CharField(allow_blank=True)
    why = CharField(allow_blank=True, help_text="Why it would wait")


class WhatIfSerializer(Serializer[Any]):
    """A policy's decision beside the present. Nothing was changed."""

    cluster = CharField()
    currency = CharField()
    at = DateTimeField()
    failure = CharField(
        allow_null=True, help_text="Why the policy could not decide; then everything stays"
    )
    current = DecisionSerializer()
    proposed = DecisionSerializer()
    differences = DifferenceSerializer(many=True)
