"""The Django project and the scheduling loop."""

from controlplane.celery import (
    app as celery_app,
)  # shared tasks belong to this application in every process

__all__ = ["celery_app"]
