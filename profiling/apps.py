"""Django application configuration."""

from django.apps import AppConfig


class ProfilingConfig(AppConfig):
    """The `profiling` application."""

    name = "profiling"
    default_auto_field = "django.db.models.BigAutoField"
