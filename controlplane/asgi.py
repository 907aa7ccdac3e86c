"""ASGI entry point: Django, with the short ways of agents' heartbeats and of submissions in
front.
"""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
_django = get_asgi_application()

from controlplane.execution.protocol.asgi import ShortWay  # noqa: E402  # it needs the applications that Django has loaded
from controlplane.web.http.lasting_threads import LastingThreads  # noqa: E402  # as above
from jobs.rest.asgi import Submissions  # noqa: E402  # as above

application = ShortWay(Submissions(LastingThreads(_django)))
