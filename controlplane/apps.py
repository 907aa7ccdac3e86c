"""Django application configuration."""

from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    """The `controlplane` application."""

    name = "controlplane"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks and what the OpenAPI document needs."""
        from controlplane import checks, openapi  # noqa: F401  # importing them registers what they have
