"""Django application configuration."""

from django.apps import AppConfig


class OperationsConfig(AppConfig):
    """The `operations` application."""

    name = "controlplane.operations"
    label = "operations"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from controlplane.operations import checks  # noqa: F401  # importing it registers them
