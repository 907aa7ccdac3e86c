"""Administration of clusters, GPU types, nodes, enrolment tokens and their events."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.forms import ModelForm
from django.http import HttpRequest

from clusters.admin_forms import ClusterForm, DeviceForm
from clusters.energy_admin import EnergyTariffAdmin, PueAdmin
from clusters.models import (
    Cluster,
    Device,
    EnrolmentToken,
    GpuType,
    ImplausibleFigure,
    Node,
    NodeEvent,
    RescheduleEvent,
)
from clusters.models.nodes import DESCRIPTION, Role
from clusters.services.enrolment import TOKEN_BYTES, sha256
from clusters.services.nodes import (
    NodeStateError,
    node_cordon,
    node_drain,
    node_set_role,
    node_set_slots,
    node_uncordon,
)
from clusters.tariffs import costs_changed
from controlplane.web.pages.admin_base import (
    AppendOnly,
    OperatorAdmin,
    ReadOnly,
    ReadOnlyInline,
    person,
    pretty,
    row_action,
    save_changed,
)

__all__ = ["ClusterAdmin", "EnergyTariffAdmin", "NodeAdmin", "PueAdmin"]

DECISION_FIELDS = (
    "policy",
    "policy_parameters",
    "seed",
    "period_s",
    "horizon_s",
    "power_cap_w",
    "power_cap_hours",
    "emissions_cost_per_kg",
    "value_of_time",
    "restart_cost_s",
    "min_run_factor",
    "profiling",
    "profiling_steps",
    "profile_silence_s",
    "predictor",
)
"""Fields of a cluster that decisions depend on."""

ROUND_FIELDS = {
    "policy",
    "policy_parameters",
    "seed",
    "power_cap_w",
    "power_cap_hours",
    "emissions_cost_per_kg",
    "horizon_s",
    "restart_cost_s",
    "value_of_time",
    "min_run_factor",
    "profiling",
    "predictor",
}
"""Fields of a cluster whose change asks for a round."""


@admin.register(Cluster)
class ClusterAdmin(OperatorAdmin):
    form = ClusterForm
    list_display = ("name", "policy", "timezone", "currency", "power_cap_w", "last_round_at")
    search_fields = ("name",)
    readonly_fields = (
        "round_number",
        "last_round_at",
        "broken_policy",
        "kept_memory",
        "created_at",
    )
    fieldsets = (
        (None, {"fields": ("name", "timezone", "currency")}),
        ("Decisions", {"fields": DECISION_FIELDS}),
        ("Agents' intervals", {"fields": ("heartbeat_s", "lease_s", "grace_s", "margin_s")}),
        ("Long output", {"fields": ("log_head_mb", "log_tail_mb")}),
        ("State", {"fields": readonly_fields}),
    )
    kept_memory = pretty("memory", "what the policy keeps")

    def get_readonly_fields(
        self, request: HttpRequest, obj: Cluster | None = None
    ) -> tuple[str, ...]:
        """Freeze the currency once there was a round: decisions and bills stay in it."""
        if obj and obj.rounds.exists():
            return (*self.readonly_fields, "currency")
        return tuple(self.readonly_fields)

    def save_model(
        self, request: HttpRequest, obj: Cluster, form: ModelForm[Cluster], change: bool
    ) -> None:
        # The columns that did not change stay: among them is the lock of a round that may run.
        save_changed(obj, form.changed_data)
        if change and ROUND_FIELDS & set(form.changed_data):
            costs_changed([obj])


@admin.register(GpuType)
class GpuTypeAdmin(OperatorAdmin):
    list_display = ("name", "tflops", "memory_gb", "idle_w", "peak_w", "price_per_hour", "emulated")
    list_filter = ("emulated",)
    search_fields = ("name",)

    def get_readonly_fields(
        self, request: HttpRequest, obj: GpuType | None = None
    ) -> tuple[str, ...]:
        """Freeze the name, which agents and jobs refer to."""
        return ("name",) if obj else ()

    def save_model(
        self, request: HttpRequest, obj: GpuType, form: ModelForm[GpuType], change: bool
    ) -> None:
        super().save_model(request, obj, form, change)
        if change and {"idle_w", "peak_w", "price_per_hour"} & set(form.changed_data):
            costs_changed(Cluster.objects.filter(nodes__gpu_type=obj).distinct())


class ImplausibleInline(ReadOnlyInline):
    model = ImplausibleFigure
    fields = readonly_fields = ("name", "count", "value", "at")


class DeviceInline(ReadOnlyInline):
    model = Device
    fields = (
        "uuid",
        "slots",
        "memory_gb",
        "healthy",
        "trouble",
        "emulated",
        "gpu_fraction",
        "power_w",
        "power_source",
    )
    readonly_fields = fields
    show_change_link = True


def _node_action(description: str, service: Callable[..., Node], **arguments: str) -> Any:
    """Return an action of the list page that calls a service for each chosen node."""

    def act(node: Node, user: User) -> Node:
        return service(node, actor=user.get_username(), **arguments)

    return row_action(description, act, NodeStateError)


@admin.register(Node)
class NodeAdmin(OperatorAdmin):
    list_display = ("name", "cluster", "gpu_type", "role", "state", "emulated", "last_seen_at")
    list_filter = ("cluster", "gpu_type", "role", "state", "emulated")
    search_fields = ("name", "machine_id")
    inlines = (DeviceInline, ImplausibleInline)
    actions = ("cordon", "uncordon", "drain", "to_production", "to_profiling", "to_both")
    readonly_fields = (
        *DESCRIPTION,
        "machine_id",
        "boot_id",
        "epoch",
        "session_expires_at",
        "last_seen_at",
        "agent_version",
        "features",
        "address",
        "emulated",
        "gpu_trouble",
        "created_at",
    )

    has_add_permission = OperatorAdmin._by_nobody

    def save_model(
        self, request: HttpRequest, obj: Node, form: ModelForm[Node], change: bool
    ) -> None:
        save_changed(obj, form.changed_data)
        if form.changed_data:
            costs_changed([obj.cluster])

    cordon = _node_action("Cordon: keep what runs, take nothing new", node_cordon)
    uncordon = _node_action("Uncordon: take work again", node_uncordon)
    drain = _node_action("Drain: jobs save a checkpoint and move elsewhere", node_drain)
    to_production = _node_action("Role: production", node_set_role, role=Role.PRODUCTION)
    to_profiling = _node_action("Role: profiling", node_set_role, role=Role.PROFILING)
    to_both = _node_action("Role: production and profiling", node_set_role, role=Role.BOTH)


@admin.register(Device)
class DeviceAdmin(OperatorAdmin):
    audited_by_service = True
    form = DeviceForm
    list_display = (
        "uuid",
        "node",
        "slots",
        "memory_gb",
        "healthy",
        "trouble",
        "emulated",
        "power_w",
        "power_source",
    )
    list_filter = ("node__cluster", "healthy", "emulated")
    search_fields = ("uuid", "node__name")
    readonly_fields = (
        "node",
        "uuid",
        "parent_uuid",
        "mig_profile",
        "memory_gb",
        "healthy",
        "trouble",
        "emulated",
        "gpu_fraction",
        "memory_used_gb",
        "power_w",
        "power_source",
        "temperature_c",
    )

    has_add_permission = OperatorAdmin._by_nobody

    def save_model(
        self, request: HttpRequest, obj: Device, form: ModelForm[Device], change: bool
    ) -> None:
        try:
            node_set_slots(obj.node, obj.slots, [obj.uuid], actor=request.user.get_username())
        except NodeStateError as error:  # a job took a slot while the page was open
            self.message_user(request, f"Nothing was changed: {error}", messages.ERROR)


@admin.register(EnrolmentToken)
class EnrolmentTokenAdmin(AppendOnly):
    list_display = (
        "id",
        "cluster",
        "role",
        "node",
        "expires_at",
        "used_at",
        "used_by",
        "created_by",
    )
    list_filter = ("cluster", "role")
    fields = ("cluster", "role", "expires_at")

    def save_model(
        self, request: HttpRequest, obj: EnrolmentToken, form: Any, change: bool
    ) -> None:
        # The database keeps only the hash, so the token itself is shown once, in a message.
        token = secrets.token_urlsafe(TOKEN_BYTES)
        obj.sha256 = sha256(token)
        obj.created_by = person(request)
        super().save_model(request, obj, form, change)
        self.message_user(request, f"The token, shown this once: {token}", messages.WARNING)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Permit the deletion of unused tokens; a used one is part of its node's history."""
        return self.has_view_permission(request) and (obj is None or obj.used_at is None)


@admin.register(NodeEvent)
class NodeEventAdmin(ReadOnly):
    list_display = ("at", "node", "event", "actor", "data")
    list_filter = ("event", "node__cluster")


@admin.register(RescheduleEvent)
class RescheduleEventAdmin(ReadOnly):
    list_display = ("created_at", "cluster", "reason", "job", "node", "round")
    list_filter = ("cluster", "reason")
    list_select_related = ("cluster", "job", "node", "round__cluster")
