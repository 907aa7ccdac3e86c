"""Administration of tariffs and PUE, whose rows never change."""

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import reverse

from clusters.models import EnergyTariff, PueRecord, TariffBand
from clusters.tariffs import costs_changed
from controlplane.web.pages.admin_base import AppendOnly, OperatorInline, detail_action, person


class BandInline(OperatorInline):
    model = TariffBand

    def _while_new(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is None and self._by_operators(request)

    has_add_permission = has_change_permission = has_delete_permission = _while_new

    def get_extra(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> int:
        return len(_copied_bands(request)) or 1


@admin.register(EnergyTariff)
class EnergyTariffAdmin(AppendOnly):
    list_display = (
        "cluster", "name", "effective_from", "default_price_per_kwh", "emissions_g_per_kwh",
        "created_by",
    )  # fmt: skip
    list_filter = ("cluster", "effective_from")
    inlines = (BandInline,)
    actions = ("new_version",)
    actions_detail = ("new_version_of",)
    readonly_fields = ("created_at", "created_by")

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Trigger a round once the bands are saved too."""
        super().save_related(request, form, formsets, change)
        costs_changed([form.instance.cluster])

    def save_model(self, request: HttpRequest, obj: EnergyTariff, form: Any, change: bool) -> None:
        obj.created_by = person(request)
        super().save_model(request, obj, form, change)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Copy the version's figures; it begins now unless another time is set."""
        copied = _copied(request)
        if copied is None:
            return super().get_changeform_initial_data(request)
        names = ("name", "default_price_per_kwh", "emissions_g_per_kwh")
        return {"cluster": copied.cluster_id, **{name: getattr(copied, name) for name in names}}

    def get_formset_kwargs(
        self, request: HttpRequest, obj: Any, inline: Any, prefix: str
    ) -> dict[str, Any]:
        """Copy the version's bands on first display only; posted values count as typed."""
        kwargs: dict[str, Any] = super().get_formset_kwargs(request, obj, inline, prefix)
        if request.method == "GET" and (bands := _copied_bands(request)):
            kwargs["initial"] = bands
        return kwargs

    @admin.action(description="New version from this one")
    def new_version(
        self, request: HttpRequest, tariffs: QuerySet[EnergyTariff]
    ) -> HttpResponseRedirect | None:
        chosen = list(tariffs[:2])
        if len(chosen) != 1:
            self.message_user(request, "Choose one tariff to copy.", messages.ERROR)
            return None
        return _to_copy(chosen[0].pk)

    @detail_action(description="New version from this one")
    def new_version_of(self, request: HttpRequest, object_id: int) -> HttpResponseRedirect:
        return _to_copy(object_id)


def _to_copy(pk: int) -> HttpResponseRedirect:
    return redirect(f"{reverse('admin:clusters_energytariff_add')}?copy={int(pk)}")


def _copied(request: HttpRequest) -> EnergyTariff | None:
    wanted = request.GET.get("copy", "")
    return EnergyTariff.objects.filter(pk=wanted).first() if wanted.isdecimal() else None


def _copied_bands(request: HttpRequest) -> list[dict[str, Any]]:
    copied = _copied(request)
    names = ("days", "from_time", "to_time", "price_per_kwh", "emissions_g_per_kwh")
    return list(copied.bands.values(*names)) if copied else []


@admin.register(PueRecord)
class PueAdmin(AppendOnly):
    list_display = ("cluster", "pue", "effective_from", "created_by", "created_at")
    list_filter = ("cluster",)
    readonly_fields = ("created_at", "created_by")

    def save_model(self, request: HttpRequest, obj: PueRecord, form: Any, change: bool) -> None:
        obj.created_by = person(request)
        super().save_model(request, obj, form, change)
        costs_changed([obj.cluster])
