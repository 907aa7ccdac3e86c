"""Django application configuration."""

from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    """The `controlplane` application."""

    name = "controlplane"
    default_auto_field = "django.db.models.BigAutoField"
