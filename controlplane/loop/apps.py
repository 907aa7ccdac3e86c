"""Django application configuration."""

from django.apps import AppConfig


class LoopConfig(AppConfig):
    name = "controlplane.loop"
    label = "loop"
    default_auto_field = "django.db.models.BigAutoField"
