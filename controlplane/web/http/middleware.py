"""Middleware for WSGI and ASGI: body limit, security headers, NUL check, streaming static files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from csp.middleware import CSPMiddleware, PolicyParts
from django.conf import settings
from django.core.exceptions import BadRequest
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from whitenoise.middleware import WhiteNoiseMiddleware

from controlplane.web.rest.errors import error_body

Answer = HttpResponseBase | Awaitable[HttpResponseBase]


class AsyncCapable:
    """A middleware that Django need not put into a thread, nor anything inside it. `get_response`
    gives an HttpResponseBase, or a coroutine of one where `later` is true.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        """The answer, or a coroutine of it."""
        return self.get_response(request)


class ContentSecurityPolicy(CSPMiddleware):
    """django-csp's middleware with policies by prefix (CONTENT_SECURITY_POLICY_BY_PREFIX)."""

    def get_policy_parts(
        self, request: HttpRequest, response: HttpResponseBase, report_only: bool = False
    ) -> PolicyParts:
        """The response's policy; a prefix's replaces the default, not the view's own."""
        parts = super().get_policy_parts(request, response, report_only)
        if report_only or parts.config is not None:
            return parts
        for prefix, policy in settings.CONTENT_SECURITY_POLICY_BY_PREFIX.items():
            if request.path_info.startswith(prefix):
                parts.config = policy
                break
        return parts


_DEVICES = (
    "camera",
    "display-capture",
    "geolocation",
    "microphone",
    "midi",
    "payment",
    "serial",
    "usb",
)
PERMISSIONS = ", ".join(f"{feature}=()" for feature in _DEVICES)


class SecurityHeaders(AsyncCapable):
    """Headers that Django leaves out: no device permissions, no caching of answers."""

    def __call__(self, request: HttpRequest) -> Answer:
        """The view's answer with the headers; a view's own Cache-Control stands."""
        answer = self.get_response(request)
        return _guarded(answer) if isinstance(answer, HttpResponseBase) else self._later(answer)

    async def _later(self, answer: Awaitable[HttpResponseBase]) -> HttpResponseBase:
        return _guarded(await answer)


def _guarded(answer: HttpResponseBase) -> HttpResponseBase:
    answer.setdefault("Permissions-Policy", PERMISSIONS)
    answer.setdefault("Cache-Control", "no-store")
    return answer


class NoNul(AsyncCapable):
    """Refuse addresses with NUL, on which PostgreSQL fails; forms name the field themselves."""

    def __call__(self, request: HttpRequest) -> Answer:
        """The view's answer. Raises BadRequest, which is shown as a page."""
        if not request.path_info.startswith("/api/"):
            query = request.META.get("QUERY_STRING", "")
            if "\0" in request.path_info or "\0" in query or "%00" in query:
                raise BadRequest("the address holds a NUL character")
        answer: Answer = self.get_response(request)
        return answer


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]  # whitenoise is untyped
    """WhiteNoise, whose answers an ASGI server would otherwise buffer with a warning."""

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> Any:
        """The file, in blocks that come the way the server takes them."""
        response = WhiteNoiseMiddleware.serve(static_file, request)
        if isinstance(request, ASGIRequest) and response.streaming:
            response.streaming_content = _blocks(response.streaming_content)
        return response


async def _blocks(content: Iterable[bytes]) -> AsyncIterator[bytes]:
    for block in content:
        yield block


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
        return _later(refused) if self.is_async else refused


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
