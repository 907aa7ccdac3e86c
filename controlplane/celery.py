"""Celery application. Tasks are idempotent hints; a reconciler finds missed work."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import after_task_publish, beat_init, heartbeat_sent

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("loadmaster")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
import_module("controlplane.web.logs.tasks")


def _touch_alive_file(**_: Any) -> None:
    if path := os.environ.get("LOADMASTER_ALIVE_FILE", ""):
        Path(path).touch()


# A worker lives while it sends heartbeats; beat lives while the broker takes what it publishes.
heartbeat_sent.connect(_touch_alive_file)
beat_init.connect(lambda **_: after_task_publish.connect(_touch_alive_file), weak=False)
