"""Django application configuration."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """The `jobs` application."""

    name = "jobs"
    default_auto_field = "django.db.models.BigAutoField"
