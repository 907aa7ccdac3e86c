"""Django application configuration."""

from django.apps import AppConfig


class AccountingConfig(AppConfig):
    """The `accounting` application."""

    name = "controlplane.accounting"
    label = "accounting"
    default_auto_field = "django.db.models.BigAutoField"
