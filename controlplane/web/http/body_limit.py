"""The largest body of a request, whoever sends it and whichever view it is for."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse

from controlplane.web.http.async_capable import Answer, AsyncCapable
from controlplane.web.rest.errors import error_body


class BodyLimit(AsyncCapable):
    """Answers 413 to a body that declares itself larger than DATA_UPLOAD_MAX_MEMORY_SIZE, before
    anything reads it, and 411 to one that declares no size at all: that could grow beyond every
    limit, and the API would take it for empty.
    """

    def __call__(self, request: HttpRequest) -> Answer:
        """The view's answer, or the refusal."""
        refused = refusal(request)
        if refused is None:
            answer: Answer = self.get_response(request)
            return answer
        return _later(refused) if self.later else refused


def refusal(request: HttpRequest) -> HttpResponse | None:
    """413 for a body that is too large, 411 for one in pieces that does not say how large it is,
    None for any other.
    """
    limit, length = settings.DATA_UPLOAD_MAX_MEMORY_SIZE, request.META.get("CONTENT_LENGTH") or ""
    if not length and request.META.get("HTTP_TRANSFER_ENCODING"):
        return _refuse(
            request,
            411,
            "length_required",
            "the body does not say how long it is; send it whole, with Content-Length",
        )
    if limit is None or not length.isdecimal() or int(length) <= limit:
        return None
    return _refuse(
        request, 413, "too_large", f"the body has {length} bytes; at most {limit} are taken"
    )


def _refuse(request: HttpRequest, status: int, code: str, detail: str) -> HttpResponse:
    if request.path.startswith("/api/"):
        return JsonResponse(error_body(code, detail), status=status)
    return HttpResponse(detail, status=status, content_type="text/plain")


async def _later(answer: HttpResponseBase) -> HttpResponseBase:
    return answer
