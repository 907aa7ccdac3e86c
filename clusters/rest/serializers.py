"""Serializers of clusters and nodes."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from clusters.models import (
    Cluster,
    Device,
    EnergyTariff,
    EnrolmentToken,
    GpuType,
    ImplausibleFigure,
    Node,
)
from clusters.models.clusters import check_lease, check_policy
from clusters.models.nodes import DESCRIPTION, Role, runtimes_of
from clusters.services.implausible import RECENT
from clusters.services.nodes import find_node
from controlplane.web.rest.bodies import OnlySettable
from loadmaster.protocol import MOST_DEVICES, MOST_SLOTS, AssignmentState
from policies.host import registry

ASSIGNMENT_STATES = [(str(state), str(state)) for state in AssignmentState]
"""Choices of an assignment's state, which the API's description names once."""


class ClusterSerializer(OnlySettable, serializers.ModelSerializer[Cluster]):
    """A cluster; operators may change its policy, intervals and limits."""

    broken_policy = serializers.CharField(
        read_only=True,
        help_text="What its policy did wrong in each of the last rounds; empty if it decides well",
    )

    class Meta:
        model = Cluster
        fields = [
            "name",
            "timezone",
            "currency",
            "policy",
            "policy_parameters",
            "seed",
            "period_s",
            "power_cap_w",
            "power_cap_hours",
            "emissions_cost_per_kg",
            "horizon_s",
            "restart_cost_s",
            "min_run_factor",
            "value_of_time",
            "profiling",
            "profile_silence_s",
            "profiling_steps",
            "predictor",
            "heartbeat_s",
            "lease_s",
            "grace_s",
            "margin_s",
            "log_head_mb",
            "log_tail_mb",
            "round_number",
            "last_round_at",
            "broken_policy",
        ]
        read_only_fields = ["name", "currency", "round_number", "last_round_at", "broken_policy"]

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check policy and parameters together; a new policy starts with its defaults."""
        # 1. The parameters belong to the policy: those of the old one do not fit a new one.
        if "policy" in attrs or "policy_parameters" in attrs:
            old_policy = self.instance.policy if self.instance else ""
            policy = attrs.get("policy", old_policy)
            kept_parameters: dict[str, Any] = {}
            if self.instance and policy == old_policy:
                kept_parameters = self.instance.policy_parameters
            parameters = attrs.get("policy_parameters", kept_parameters)
            if policy not in registry.names():
                problem = f"{policy!r} is no policy; known are: {', '.join(registry.names())}"
                raise serializers.ValidationError({"policy": problem})
            check_policy(policy, parameters)
            attrs["policy_parameters"] = parameters

        # 2. A lease outlasts one lost heartbeat.
        lease_s = attrs.get("lease_s", getattr(self.instance, "lease_s", 0.0))
        heartbeat_s = attrs.get("heartbeat_s", getattr(self.instance, "heartbeat_s", 0.0))
        check_lease(lease_s, heartbeat_s)
        return attrs


class GpuTypeSerializer(OnlySettable, serializers.ModelSerializer[GpuType]):
    """A GPU model; operators may change its price by the hour."""

    class Meta:
        model = GpuType
        fields = ["name", "tflops", "memory_gb", "idle_w", "peak_w", "price_per_hour", "emulated"]
        read_only_fields = ["name", "tflops", "memory_gb", "idle_w", "peak_w", "emulated"]


class DeviceSerializer(serializers.ModelSerializer[Device]):
    """A GPU of a node; `held_slots` of its `slots` are taken now."""

    held_slots = serializers.SerializerMethodField()

    class Meta:
        model = Device
        fields = [
            "uuid",
            "slots",
            "held_slots",
            "memory_gb",
            "healthy",
            "trouble",
            "emulated",
            "parent_uuid",
            "mig_profile",
            "gpu_fraction",
            "memory_used_gb",
            "power_w",
            "power_source",
            "temperature_c",
        ]

    def get_held_slots(self, device: Device) -> int:
        return int(getattr(device, "held", 0))


class ImplausibleSerializer(serializers.ModelSerializer[ImplausibleFigure]):
    """A figure that a node reported and that cannot be: how often, and the newest one."""

    class Meta:
        model = ImplausibleFigure
        fields = ["name", "count", "value", "at"]


class NodeSerializer(serializers.ModelSerializer[Node]):
    """A node and its GPUs."""

    cluster = serializers.CharField(source="cluster.name")
    gpu_type = serializers.CharField(source="type_name", help_text="Empty without GPUs")
    devices = DeviceSerializer(many=True)
    implausible = ImplausibleSerializer(
        source=RECENT, many=True, help_text="Of the last day; they are not counted"
    )
    runtimes = serializers.SerializerMethodField()
    isolation = serializers.CharField(
        help_text="isolated; one_team: it serves one team alone; shared: by its operator's decision"
    )
    limits = serializers.ListField(
        child=serializers.CharField(),
        allow_null=True,
        help_text="Resources of each job that the kernel limits: memory, processes, cores;"
        " null if not known",
    )

    class Meta:
        model = Node
        fields = [
            "id",
            "name",
            *DESCRIPTION,
            "reserved_cores",
            "reserved_memory_gb",
            "labels",
            "runtimes",
            "isolation",
            "limits",
            "rack",
            "emulated",
            "agent_version",
            "last_seen_at",
            "disk_free_gb",
            "gpu_trouble",
            "devices",
            "implausible",
        ]

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_runtimes(self, node: Node) -> list[str]:
        return list(runtimes_of(node.features))


class ReasonSerializer(OnlySettable, serializers.Serializer[Any]):
    """Reason that an operator gives for an action."""

    reason = serializers.CharField(required=False, allow_blank=True, max_length=200, default="")


class DrainSerializer(ReasonSerializer):
    """Time until which jobs may run on a node that is drained."""

    until = serializers.DateTimeField(
        required=False,
        allow_null=True,
        default=None,
        help_text="What runs until then is moved away",
    )


class RoleSerializer(OnlySettable, serializers.Serializer[Any]):
    """Role of a node."""

    role = serializers.ChoiceField(choices=Role.choices)


class SlotsSerializer(OnlySettable, serializers.Serializer[Any]):
    """Number of jobs that may share each GPU."""

    slots = serializers.IntegerField(min_value=1, max_value=MOST_SLOTS)
    devices = serializers.ListField(
        child=serializers.CharField(max_length=100),
        required=False,
        default=list,
        max_length=MOST_DEVICES,
        help_text="uuids of the GPUs meant; all of the node where left out",
    )


class TariffSerializer(serializers.ModelSerializer[EnergyTariff]):
    """Version of a cluster's prices; a series has an end, prices of its own, and their mean."""

    prices = serializers.IntegerField(help_text="Prices of a series; 0 for others")

    class Meta:
        model = EnergyTariff
        fields = [
            "id",
            "name",
            "effective_from",
            "effective_until",
            "default_price_per_kwh",
            "emissions_g_per_kwh",
            "prices",
            "created_at",
        ]


class SeriesInput(OnlySettable, serializers.Serializer[Any]):
    """A series of prices."""

    name = serializers.CharField(required=False, allow_blank=True, max_length=100, default="")
    csv = serializers.CharField(
        trim_whitespace=False,
        help_text="A header such as start,price_per_kwh (or price_per_mwh), then a line a step",
    )


class EnrolmentTokenSerializer(serializers.ModelSerializer[EnrolmentToken]):
    """A token that lets a machine in, without the token itself, of which only a hash is kept."""

    cluster = serializers.CharField(source="cluster.name")
    used_by = serializers.CharField(source="used_by.name", allow_null=True, default=None)
    node = serializers.CharField(
        source="node.name", allow_null=True, default=None, help_text="Whose place it takes"
    )

    class Meta:
        model = EnrolmentToken
        fields = ["id", "cluster", "role", "node", "expires_at", "used_at", "used_by", "created_at"]


class EnrolmentTokenInput(OnlySettable, serializers.Serializer[Any]):
    """Request for an enrolment token."""

    cluster = serializers.SlugRelatedField(slug_field="name", queryset=Cluster.objects.all())
    role = serializers.ChoiceField(choices=Role.choices, default=Role.PRODUCTION)
    valid_h = serializers.FloatField(
        min_value=0.01, max_value=24 * 366, default=24.0, help_text="Hours until it expires"
    )
    node = serializers.CharField(
        required=False,
        allow_blank=True,
        default="",
        max_length=100,
        help_text="Name or id of a node whose machine is gone: the new one takes its place",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Replace the name or id of a node by the node; "" by None."""
        cluster = attrs["cluster"]
        name = attrs["node"]
        node = None
        if name:
            node = find_node(cluster, name)
            if node is None:
                raise serializers.ValidationError({"node": f"{cluster} has no node {name!r}"})
        return {**attrs, "node": node}


class NewEnrolmentTokenSerializer(serializers.Serializer[Any]):
    """The token, shown this once."""

    token = serializers.CharField()


class PolicySerializer(serializers.Serializer[Any]):
    """A policy that can be chosen; `error` says why a broken one cannot."""

    name = serializers.CharField()
    summary = serializers.CharField()
    error = serializers.CharField(allow_null=True)
    third_party = serializers.BooleanField()
    parameters = serializers.SerializerMethodField()

    @extend_schema_field({"type": "object", "nullable": True})
    def get_parameters(self, entry: registry.PolicyEntry) -> dict[str, Any] | None:
        return None if entry.error else registry.schema(entry.name)
