"""The largest body of a request, whoever sends it and whichever view it is for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse

from controlplane.errors import error_body

Answer = HttpResponseBase | Awaitable[HttpResponseBase]


class BodyLimit:
    """Answers 413 to a body that declares itself larger than DATA_UPLOAD_MAX_MEMORY_SIZE, before anything reads it."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Answer]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Answer:
        """The view's answer, or 413."""
        refused = refusal(request)
        if refused is None:
            return self.get_response(request)
        return _later(refused) if iscoroutinefunction(self.get_response) else refused


def refusal(request: HttpRequest) -> HttpResponse | None:
    """413 for a body that is too large, None for one that is not."""
    limit, length = settings.DATA_UPLOAD_MAX_MEMORY_SIZE, request.META.get("CONTENT_LENGTH") or "0"
    if limit is None or not length.isdecimal() or int(length) <= limit:
        return None
    detail = f"the body has {length} bytes; at most {limit} are taken"
    if request.path.startswith("/api/"):
        return JsonResponse(error_body("too_large", detail), status=413)
    return HttpResponse(detail, status=413, content_type="text/plain")


async def _later(answer: HttpResponseBase) -> HttpResponseBase:
    return answer
