"""Django application configuration."""

from django.apps import AppConfig


class StudiesConfig(AppConfig):
    """The `studies` application."""

    name = "controlplane.studies"
    label = "studies"
