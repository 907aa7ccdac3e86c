"""ASGI entry point: Django, with the agent protocol in front."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup(set_prefix=False)

from controlplane.execution.protocol.app import AgentProtocol  # noqa: E402  # needs loaded apps
from controlplane.web.http.asgi import ThreadedHandler  # noqa: E402  # as above
from controlplane.web.http.callers import limited  # noqa: E402  # as above

application = AgentProtocol(limited(ThreadedHandler()))
