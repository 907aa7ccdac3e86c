"""The Celery application. The broker carries hints, never truth: tasks are idempotent, a reconciler finds what was missed."""

from __future__ import annotations

import os
from importlib import import_module

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("loadmaster")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
import_module("controlplane.log_tasks")
