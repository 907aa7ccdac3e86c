"""Django application configuration."""

from django.apps import AppConfig


class WebConfig(AppConfig):
    name = "controlplane.web"
    label = "web"

    def ready(self) -> None:
        """Import the modules that register receivers and extensions."""
        from controlplane.web.credentials import passwords  # noqa: F401  # registers a receiver
        from controlplane.web.rest import openapi  # noqa: F401  # registers extensions
        from controlplane.web.storage import postgres  # noqa: F401  # registers a receiver
