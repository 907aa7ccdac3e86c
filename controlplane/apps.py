"""Django application configuration."""

from django.apps import AppConfig, apps

OURS = ("clusters", "jobs", "profiling", "accounting", "loop", "studies")


class ControlplaneConfig(AppConfig):
    """The `controlplane` application."""

    name = "controlplane"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Name the units of our own models' fields."""
        from controlplane.web.pages.units import name_units

        name_units(model for app in OURS for model in apps.get_app_config(app).get_models())
