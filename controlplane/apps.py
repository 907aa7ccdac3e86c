"""Django application configuration."""

from django.apps import AppConfig, apps

OURS = ("clusters", "jobs", "profiling", "controlplane")


class ControlplaneConfig(AppConfig):
    """The `controlplane` application."""

    name = "controlplane"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register system checks and OpenAPI extensions; name the units of our models' fields."""
        from controlplane.web.pages.units import name_units
        from controlplane.web.rest import openapi  # noqa: F401  # importing them registers what they have

        name_units(model for app in OURS for model in apps.get_app_config(app).get_models())
