"""Django application configuration."""

from django.apps import AppConfig


class LoopConfig(AppConfig):
    name = "controlplane.loop"
    label = "loop"
