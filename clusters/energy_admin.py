"""Administration of tariffs and PUE, whose rows never change."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from unfold.widgets import (
    UnfoldAdminFileFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from clusters.models import Cluster, EnergyTariff, PueRecord, TariffBand
from clusters.tariff_series import SeriesError, add_series
from clusters.tariffs import costs_changed
from controlplane.web.pages.admin_base import AppendOnly, OperatorInline, detail_action, person
from loadmaster.text_formats import TextError, decode


class SeriesForm(forms.Form):
    """Form to upload a series of prices of a cluster as a CSV file."""

    cluster = forms.ModelChoiceField(
        Cluster.objects.order_by("name"), widget=UnfoldAdminSelectWidget
    )
    name = forms.CharField(
        max_length=100,
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="What you call it, such as day ahead",
    )
    file = forms.FileField(
        label="CSV file",
        widget=UnfoldAdminFileFieldWidget,
        help_text="A header such as start,price_per_kwh (or price_per_mwh), then one line for each"
        " hour or quarter of an hour. Times without an offset are the cluster's wall clock.",
    )

    def save(self, request: HttpRequest) -> EnergyTariff | None:
        """Add the series and return its tariff; None, with errors in the form, if it is refused."""
        try:
            text = decode(self.cleaned_data["file"].read(), any_encoding=True)
            name = self.cleaned_data["name"]
            return add_series(self.cleaned_data["cluster"], text, name=name, by=person(request))
        except (SeriesError, TextError) as error:
            self.add_error("file", str(error))
        except ValidationError as error:
            self.add_error(None, error)
        return None


class BandInline(OperatorInline):
    model = TariffBand

    def _while_new(self, request: HttpRequest, obj: Any = None) -> bool:
        """Permit operators to add the bands of a new version; a saved one never changes."""
        return obj is None and self._by_operators(request)

    has_add_permission = _while_new
    has_change_permission = _while_new
    has_delete_permission = _while_new

    def get_extra(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> int:
        return len(_copied_bands(request)) or 1


@admin.register(EnergyTariff)
class EnergyTariffAdmin(AppendOnly):
    list_display = (
        "cluster",
        "name",
        "effective_from",
        "effective_until",
        "default_price_per_kwh",
        "emissions_g_per_kwh",
        "created_by",
    )
    list_filter = ("cluster", "effective_from")
    inlines = (BandInline,)
    actions = ("new_version",)
    actions_detail = ("new_version_of",)
    actions_list = ("add_series_of_prices",)
    readonly_fields = ("effective_until", "created_at", "created_by")

    @detail_action(description="Add a series", url_path="series")
    def add_series_of_prices(self, request: HttpRequest) -> HttpResponse:
        """Show the form of a series, and add the series that is uploaded."""
        form = SeriesForm(request.POST or None, request.FILES or None)
        if request.method == "POST" and form.is_valid():
            tariff = form.save(request)
            if tariff is not None:
                count = tariff.steps.count()
                self.message_user(request, f"{count} prices are added: {tariff}.", messages.SUCCESS)
                return redirect("admin:clusters_energytariff_changelist")
        context = {
            **self.admin_site.each_context(request),
            "title": "Add a series of prices",
            "opts": self.opts,
            "form": form,
        }
        return render(request, "admin/tariff_series.html", context)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Save the bands, then ask for a round that sees them."""
        super().save_related(request, form, formsets, change)
        costs_changed([form.instance.cluster])

    def save_model(self, request: HttpRequest, obj: EnergyTariff, form: Any, change: bool) -> None:
        obj.created_by = person(request)
        super().save_model(request, obj, form, change)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Return the values of the version to copy; the new version begins now."""
        copied = _copied_tariff(request)
        if copied is None:
            return super().get_changeform_initial_data(request)
        return {
            "cluster": copied.cluster_id,
            "name": copied.name,
            "default_price_per_kwh": copied.default_price_per_kwh,
            "emissions_g_per_kwh": copied.emissions_g_per_kwh,
        }

    def get_formset_kwargs(
        self, request: HttpRequest, obj: Any, inline: Any, prefix: str
    ) -> dict[str, Any]:
        """Fill in the bands of the version to copy when the form is first shown."""
        kwargs: dict[str, Any] = super().get_formset_kwargs(request, obj, inline, prefix)
        bands = _copied_bands(request)
        if request.method == "GET" and bands:
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
        return _redirect_to_copy(chosen[0].pk)

    @detail_action(description="New version from this one")
    def new_version_of(self, request: HttpRequest, object_id: int) -> HttpResponseRedirect:
        return _redirect_to_copy(object_id)


def _redirect_to_copy(pk: int) -> HttpResponseRedirect:
    """Redirect to the form of a new version, filled from the version `pk`."""
    return redirect(f"{reverse('admin:clusters_energytariff_add')}?copy={int(pk)}")


def _copied_tariff(request: HttpRequest) -> EnergyTariff | None:
    """Return the version that the address names as `copy`, if any."""
    key = request.GET.get("copy", "")
    if not key.isdecimal():
        return None
    return EnergyTariff.objects.filter(pk=key).first()


def _copied_bands(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the values of the bands of the version to copy."""
    copied = _copied_tariff(request)
    if copied is None:
        return []
    fields = ("days", "from_time", "to_time", "price_per_kwh", "emissions_g_per_kwh")
    return list(copied.bands.values(*fields))


@admin.register(PueRecord)
class PueAdmin(AppendOnly):
    list_display = ("cluster", "pue", "effective_from", "created_by", "created_at")
    list_filter = ("cluster",)
    readonly_fields = ("created_at", "created_by")

    def save_model(self, request: HttpRequest, obj: PueRecord, form: Any, change: bool) -> None:
        obj.created_by = person(request)
        super().save_model(request, obj, form, change)
        costs_changed([obj.cluster])
