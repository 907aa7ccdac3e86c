"""Application configuration, and units in the labels of model fields."""

from collections.abc import Iterable

from django.apps import AppConfig, apps
from django.db.models import Model

UNITS = {
    "_w": "W",
    "_s": "s",
    "_gb": "GB",
    "_kwh": "kWh",
    "_g": "g",
    "_c": "°C",
    "_per_s": "1/s",
    "_per_hour": "per hour",
    "_per_kg": "per kg",
    "_per_kwh": "per kWh",
    "_g_per_kwh": "g per kWh",
}
"""Units by the ending of a name; the longest that fits."""


def with_unit(name: str) -> str | None:
    """Label with the unit of this name, or None without one."""
    endings = [ending for ending in UNITS if name.endswith(ending) and name != ending[1:]]
    if not endings:
        return None
    ending = max(endings, key=len)
    return f"{name.removesuffix(ending).replace('_', ' ')} ({UNITS[ending]})"


def name_units(models: Iterable[type[Model]]) -> None:
    """Set unit labels on fields without a verbose name, unseen by migrations."""
    for model in models:
        for field in model._meta.fields:
            has_none = field.verbose_name == field.name.replace("_", " ")
            if has_none and (words := with_unit(field.name)) is not None:
                field.verbose_name = words


OURS = ("clusters", "jobs", "profiling", "accounting", "loop", "studies")


class ControlplaneConfig(AppConfig):
    name = "controlplane"

    def ready(self) -> None:
        from controlplane.apps import name_units

        name_units(model for app in OURS for model in apps.get_app_config(app).get_models())
