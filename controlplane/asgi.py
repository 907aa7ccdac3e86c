"""ASGI entry point: Django, with the short way of agents' heartbeats in front."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
_django = get_asgi_application()

from clusters.asgi import ShortWay  # noqa: E402  # it needs the applications that Django has loaded by now

application = ShortWay(_django)
