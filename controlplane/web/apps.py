"""Django application configuration."""

from django.apps import AppConfig


class WebConfig(AppConfig):
    """The `web` application."""

    name = "controlplane.web"
    label = "web"
    default_auto_field = "django.db.models.BigAutoField"
