"""Forms of the administration of clusters and GPUs."""

from typing import Any

from django.core.exceptions import ValidationError
from unfold.widgets import UnfoldAdminSelectWidget

from clusters.models import Cluster, Device
from clusters.models.clusters import check_policy
from clusters.services.devices import held_slots
from controlplane.web.pages.admin_base import PlainModelForm
from controlplane.web.pages.policy_help import parameters_of
from loadmaster.protocol import MOST_SLOTS
from policies.host import registry


class ClusterForm(PlainModelForm):
    """Cluster with a known policy and valid parameters."""

    class Meta:
        model = Cluster
        fields = "__all__"  # the page names its fields

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # 1. The policies to choose from. The page of a user who may only look has no such field.
        policy_field = self.fields.get("policy")
        if policy_field is not None:
            choices = [(entry.name, _label(entry)) for entry in registry.entries()]
            policy_field.widget = UnfoldAdminSelectWidget(choices=choices)
            policy_field.help_text = "Decides what runs where; takes effect at the next round."

        # 2. The parameters of the policy that is chosen or saved.
        parameters_field = self.fields.get("policy_parameters")
        if parameters_field is not None:
            policy = self["policy"].value() or registry.DEFAULT
            parameters_field.help_text = _parameters_help(policy)

    def clean(self) -> dict[str, Any] | None:
        """Let the policy check its parameters."""
        cleaned = super().clean() or self.cleaned_data
        if "policy" in cleaned and "policy_parameters" in cleaned:
            cleaned["policy_parameters"] = cleaned["policy_parameters"] or {}
            check_policy(cleaned["policy"], cleaned["policy_parameters"])
        return cleaned


class DeviceForm(PlainModelForm):
    """GPU with an operator's number of slots, never fewer than are held."""

    class Meta:
        model = Device
        fields = ("slots",)

    def clean_slots(self) -> int:
        slots: int = self.cleaned_data["slots"]
        slots_held = held_slots([self.instance]).get(self.instance.pk, 0)
        if slots < slots_held:
            holders = "a job holds" if slots_held == 1 else f"{slots_held} jobs hold"
            raise ValidationError(
                f"must be from {slots_held} to {MOST_SLOTS}: {holders} it now; cancel or move one,"
                " or wait until it has ended"
            )
        return slots


def _label(entry: registry.PolicyEntry) -> str:
    """Return the text of a policy in the list to choose from."""
    if entry.error:
        return f"{entry.name} (cannot be used: {entry.error})"
    return f"{entry.name}: {entry.summary}"


def _parameters_help(policy: str) -> str:
    """Return the help text of a policy's parameters, with their values and meaning."""
    parameters = []
    for parameter in parameters_of(policy):
        values = f"{parameter.values}, default {parameter.default}"
        parameters.append(f"{parameter.name} ({values}): {parameter.meaning}")
    description = "; ".join(parameters) or "none"
    return f"A JSON object. Of {policy}: {description}. Empty for the defaults."
