"""Django application configuration."""

from django.apps import AppConfig


class OperationsConfig(AppConfig):
    name = "controlplane.operations"

    def ready(self) -> None:
        from controlplane.operations import checks  # noqa: F401  # importing it registers them
