"""Django application configuration."""

from django.apps import AppConfig


class WebConfig(AppConfig):
    name = "controlplane.web"
    label = "web"

    def ready(self) -> None:
        from controlplane.web.rest import openapi  # noqa: F401  # importing it registers them
