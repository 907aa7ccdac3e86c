"""ASGI entry point: Django, with the agent protocol in front."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
_django = get_asgi_application()

from controlplane.execution.protocol.app import AgentProtocol  # noqa: E402  # needs loaded apps
from controlplane.web.http.asgi import LastingThreads  # noqa: E402  # as above

application = AgentProtocol(LastingThreads(_django))
