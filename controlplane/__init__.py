"""Django project and scheduling loop."""

# Shared tasks belong to this application in every process.
from controlplane.celery import app as celery_app

__all__ = ["celery_app"]
