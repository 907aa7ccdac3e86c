"""Django application configuration."""

from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    """The `controlplane` application."""

    name = "controlplane"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register what the OpenAPI document needs."""
        from controlplane import openapi  # noqa: F401  # importing it registers its extensions
