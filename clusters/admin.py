"""Administration of clusters: what they are made of, what energy costs there, and what is assigned."""

from __future__ import annotations

import secrets
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import reverse

from clusters.admin_forms import ClusterForm
from clusters.models import (
    Assignment,
    AssignmentEvent,
    AssignmentSlot,
    Cluster,
    Device,
    EnergyTariff,
    EnrolmentToken,
    GpuType,
    Node,
    NodeEvent,
    PueRecord,
    TariffBand,
)
from clusters.models.nodes import Role
from clusters.services import NodeStateError, node_cordon, node_drain, node_set_role, node_uncordon
from clusters.services.enrolment import sha256
from controlplane.admin_base import (
    AppendOnly,
    OperatorAdmin,
    OperatorInline,
    ReadOnly,
    ReadOnlyInline,
    costs_changed,
    for_each,
    pretty,
)


@admin.register(Cluster)
class ClusterAdmin(OperatorAdmin):
    """A cluster: policy and parameters are held to the policy's own schema."""

    form = ClusterForm
    list_display = ("name", "policy", "timezone", "currency", "power_cap_w", "last_round_at")
    search_fields = ("name",)
    readonly_fields = ("round_number", "last_round_at", "kept_memory", "created_at")
    fieldsets = (
        (None, {"fields": ("name", "timezone", "currency")}),
        ("Decisions", {"fields": ("policy", "policy_parameters", "seed", "period_s", "horizon_s", "power_cap_w", "restart_cost_s", "profiling_steps")}),
        ("Agents' clockwork", {"fields": ("heartbeat_s", "lease_s", "grace_s", "margin_s")}),
        ("State", {"fields": ("round_number", "last_round_at", "kept_memory", "created_at")}),
    )  # fmt: skip
    kept_memory = pretty("memory", "what the policy keeps")

    def save_model(self, request: HttpRequest, obj: Cluster, form: ModelForm[Cluster], change: bool) -> None:
        """A changed policy or cap takes effect at once: what a person set here is the reason for a round."""
        super().save_model(request, obj, form, change)
        if change and {"policy", "policy_parameters", "seed", "power_cap_w", "horizon_s", "restart_cost_s"} & set(
            form.changed_data
        ):
            costs_changed([obj])


@admin.register(GpuType)
class GpuTypeAdmin(OperatorAdmin):
    """A GPU type. Its watts are part of every cost."""

    list_display = ("name", "tflops", "memory_gb", "idle_w", "peak_w", "emulated")
    list_filter = ("emulated",)
    search_fields = ("name",)

    def save_model(self, request: HttpRequest, obj: GpuType, form: ModelForm[GpuType], change: bool) -> None:
        """Changed watts ask for a round wherever there are nodes of the type."""
        super().save_model(request, obj, form, change)
        if change and {"idle_w", "peak_w"} & set(form.changed_data):
            costs_changed(Cluster.objects.filter(nodes__gpu_type=obj).distinct())


class DeviceInline(ReadOnlyInline):
    """GPUs as their agent reports them; only the number of slots is set by people, on the device's own page."""

    model = Device
    fields = ("uuid", "slots", "memory_gb", "healthy", "emulated", "gpu_fraction", "power_w", "power_source")
    readonly_fields = fields
    show_change_link = True


@admin.register(Node)
class NodeAdmin(OperatorAdmin):
    """A machine. State and role change by actions, which write their events; agents bring new machines."""

    list_display = ("name", "cluster", "gpu_type", "role", "state", "emulated", "last_seen_at")
    list_filter = ("cluster", "gpu_type", "role", "state", "emulated")
    list_select_related = ("cluster", "gpu_type")
    search_fields = ("name", "machine_id")
    inlines = (DeviceInline,)
    actions = ("cordon", "uncordon", "drain", "to_production", "to_profiling", "to_both")
    readonly_fields = (
        "cluster", "gpu_type", "role", "state", "drain_until", "reason", "cores", "memory_gb", "machine_id", "boot_id", "epoch",
        "session_expires_at", "last_seen_at", "agent_version", "features", "emulated", "created_at",
    )  # fmt: skip

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A node is there when its agent has enrolled."""
        return False

    def save_model(self, request: HttpRequest, obj: Node, form: ModelForm[Node], change: bool) -> None:
        """Changed watts, reserves or labels ask for a round."""
        super().save_model(request, obj, form, change)
        if form.changed_data:
            costs_changed([obj.cluster])

    @admin.action(description="Cordon: keep what runs, take nothing new")
    def cordon(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        actor = request.user.get_username()
        for_each(self, request, nodes, lambda n: node_cordon(n, actor), (NodeStateError,))

    @admin.action(description="Uncordon: take work again")
    def uncordon(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        actor = request.user.get_username()
        for_each(self, request, nodes, lambda n: node_uncordon(n, actor), (NodeStateError,))

    @admin.action(description="Drain: jobs save a checkpoint and move elsewhere")
    def drain(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        actor = request.user.get_username()
        for_each(self, request, nodes, lambda n: node_drain(n, actor), (NodeStateError,))

    @admin.action(description="Role: production")
    def to_production(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        self._role(request, nodes, Role.PRODUCTION)

    @admin.action(description="Role: profiling")
    def to_profiling(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        self._role(request, nodes, Role.PROFILING)

    @admin.action(description="Role: production and profiling")
    def to_both(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        self._role(request, nodes, Role.BOTH)

    def _role(self, request: HttpRequest, nodes: QuerySet[Node], role: Role) -> None:
        actor = request.user.get_username()
        for_each(self, request, nodes, lambda n: node_set_role(n, role, actor), (NodeStateError,))


@admin.register(Device)
class DeviceAdmin(OperatorAdmin):
    """A GPU. How many assignments may share it is set here; the rest is what its agent reports."""

    list_display = ("uuid", "node", "slots", "memory_gb", "healthy", "emulated", "power_w", "power_source")
    list_filter = ("node__cluster", "healthy", "emulated")
    list_select_related = ("node",)
    search_fields = ("uuid", "node__name")
    readonly_fields = (
        "node", "uuid", "parent_uuid", "mig_profile", "memory_gb", "healthy", "emulated", "gpu_fraction", "memory_used_gb", "power_w",
        "power_source", "temperature_c",
    )  # fmt: skip

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Agents report GPUs."""
        return False


class BandInline(OperatorInline):
    """Prices for some hours of some days; those of a saved tariff stay as they are."""

    model = TariffBand

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is None and super().has_add_permission(request, obj)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is None and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is None and super().has_delete_permission(request, obj)

    def get_extra(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> int:
        """Room for the bands of the version that is copied."""
        return len(_copied_bands(request)) or 1


@admin.register(EnergyTariff)
class EnergyTariffAdmin(AppendOnly):
    """Prices. A saved version never changes: "New version from this one" starts the next with its figures."""

    list_display = ("cluster", "name", "effective_from", "default_price_per_kwh", "emissions_g_per_kwh", "created_by")
    list_filter = ("cluster",)
    list_select_related = ("cluster", "created_by")
    date_hierarchy = "effective_from"
    inlines = (BandInline,)
    actions = ("new_version",)
    actions_detail = ("new_version_of",)
    readonly_fields = ("created_at", "created_by")

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Once the bands are there too, the next round decides by the new prices."""
        super().save_related(request, form, formsets, change)
        costs_changed([form.instance.cluster])

    def save_model(self, request: HttpRequest, obj: EnergyTariff, form: Any, change: bool) -> None:
        obj.created_by = _person(request)
        super().save_model(request, obj, form, change)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """The figures of the version that is copied; it begins now unless another time is set."""
        copied = _copied(request)
        if copied is None:
            return super().get_changeform_initial_data(request)
        names = ("cluster", "name", "default_price_per_kwh", "emissions_g_per_kwh")
        return {name: getattr(copied, f"{name}_id" if name == "cluster" else name) for name in names}

    def get_formset_kwargs(self, request: HttpRequest, obj: Any, inline: Any, prefix: str) -> dict[str, Any]:
        """The bands of the version that is copied, on the first showing only: what is sent counts as typed."""
        kwargs: dict[str, Any] = super().get_formset_kwargs(request, obj, inline, prefix)  # type: ignore[misc]  # the stubs do not know it
        if request.method == "GET" and (bands := _copied_bands(request)):
            kwargs["initial"] = bands
        return kwargs

    @admin.action(description="New version from this one")
    def new_version(self, request: HttpRequest, tariffs: QuerySet[EnergyTariff]) -> HttpResponseRedirect | None:
        chosen = list(tariffs[:2])
        if len(chosen) != 1:
            self.message_user(request, "Choose one tariff to copy.", messages.ERROR)
            return None
        return self.new_version_of(request, chosen[0].pk)

    def new_version_of(self, request: HttpRequest, object_id: int) -> HttpResponseRedirect:
        return redirect(f"{reverse('admin:clusters_energytariff_add')}?copy={int(object_id)}")


def _copied(request: HttpRequest) -> EnergyTariff | None:
    wanted = request.GET.get("copy", "")
    return EnergyTariff.objects.filter(pk=wanted).first() if wanted.isdecimal() else None


def _copied_bands(request: HttpRequest) -> list[dict[str, Any]]:
    copied = _copied(request)
    names = ("days", "from_time", "to_time", "price_per_kwh")
    return [{name: getattr(band, name) for name in names} for band in copied.bands.all()] if copied else []


@admin.register(PueRecord)
class PueAdmin(AppendOnly):
    """Facility energy over IT energy. A new value is a new row; the old ones stay."""

    list_display = ("cluster", "pue", "effective_from", "created_by", "created_at")
    list_filter = ("cluster",)
    list_select_related = ("cluster", "created_by")
    readonly_fields = ("created_at", "created_by")

    def save_model(self, request: HttpRequest, obj: PueRecord, form: Any, change: bool) -> None:
        obj.created_by = _person(request)
        super().save_model(request, obj, form, change)
        costs_changed([obj.cluster])


@admin.register(EnrolmentToken)
class EnrolmentTokenAdmin(AppendOnly):
    """Lets one machine in, once. The token is shown when it is made and never again."""

    list_display = ("id", "cluster", "role", "expires_at", "used_at", "used_by", "created_by")
    list_filter = ("cluster", "role")
    list_select_related = ("cluster", "used_by", "created_by")
    fields = ("cluster", "role", "expires_at")

    def save_model(self, request: HttpRequest, obj: EnrolmentToken, form: Any, change: bool) -> None:
        token = secrets.token_urlsafe(32)
        obj.sha256, obj.created_by = sha256(token), _person(request)
        super().save_model(request, obj, form, change)
        self.message_user(request, f"The token, shown this once: {token}", messages.WARNING)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A token that was not used may be withdrawn."""
        return self.has_view_permission(request) and (obj is None or obj.used_at is None)


class SlotInline(ReadOnlyInline):
    """GPUs an assignment holds or held."""

    model = AssignmentSlot
    fields = readonly_fields = ("device", "slot", "share", "live")


class EventInline(ReadOnlyInline):
    """What happened to an assignment."""

    model = AssignmentEvent
    fields = readonly_fields = ("at", "move", "from_state", "to_state", "observed_at", "data")


@admin.register(Assignment)
class AssignmentAdmin(ReadOnly):
    """A placement committed for an agent."""

    list_display = ("job", "node", "purpose", "rank", "gpus", "fence", "state", "desired", "created_at", "ended_at", "energy_cost")
    list_filter = ("state", "purpose", "node__cluster", "node")
    list_select_related = ("job", "node")
    search_fields = ("=id", "job__name", "node__name")
    date_hierarchy = "created_at"
    inlines = (SlotInline, EventInline)


@admin.register(AssignmentEvent)
class AssignmentEventAdmin(ReadOnly):
    """Every change of every assignment."""

    list_display = ("at", "assignment", "move", "from_state", "to_state")
    list_filter = ("move",)
    list_select_related = ("assignment",)


@admin.register(NodeEvent)
class NodeEventAdmin(ReadOnly):
    """What happened to nodes."""

    list_display = ("at", "node", "event", "actor", "data")
    list_filter = ("event", "node__cluster")
    list_select_related = ("node",)


def _person(request: HttpRequest) -> User | None:
    return request.user if isinstance(request.user, User) else None
