"""Django application configuration."""

from django.apps import AppConfig


class ClustersConfig(AppConfig):
    """The `clusters` application."""

    name = "clusters"
    default_auto_field = "django.db.models.BigAutoField"
