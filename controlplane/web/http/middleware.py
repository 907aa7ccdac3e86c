"""Middleware: body limit, security headers, NUL check, streaming static files."""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from csp.middleware import CSPMiddleware, PolicyParts
from django.conf import settings
from django.core.exceptions import BadRequest
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from whitenoise.middleware import WhiteNoiseMiddleware

from controlplane.web.rest.errors import error_body


class Middleware:
    """Base of middleware that works in the request's thread, under WSGI as under ASGI."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)


class ContentSecurityPolicy(CSPMiddleware):
    """django-csp's middleware with policies by prefix (CONTENT_SECURITY_POLICY_BY_PREFIX)."""

    def get_policy_parts(
        self, request: HttpRequest, response: HttpResponseBase, report_only: bool = False
    ) -> PolicyParts:
        parts = super().get_policy_parts(request, response, report_only)
        if report_only or parts.config is not None:
            return parts
        for prefix, policy in settings.CONTENT_SECURITY_POLICY_BY_PREFIX.items():
            if request.path_info.startswith(prefix):
                parts.config = policy
                break
        return parts


_DEVICES = "camera display-capture geolocation microphone midi payment serial usb"
PERMISSIONS = ", ".join(f"{feature}=()" for feature in _DEVICES.split())
"""Header by which no page may use a device."""


class SecurityHeaders(Middleware):
    """Headers that Django leaves out: no device permissions, no caching of answers."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        answer = self.get_response(request)
        answer.setdefault("Permissions-Policy", PERMISSIONS)
        answer.setdefault("Cache-Control", "no-store")
        return answer


class NoNul(Middleware):
    """Refusal of addresses with NUL, on which PostgreSQL fails; forms check their fields."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not request.path_info.startswith("/api/"):
            query = request.META.get("QUERY_STRING", "")
            if "\0" in request.path_info or "\0" in query or "%00" in query:
                raise BadRequest("the address holds a NUL character")
        return self.get_response(request)


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]  # whitenoise is untyped
    """WhiteNoise, whose answers an ASGI server would otherwise buffer with a warning."""

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> Any:
        response = WhiteNoiseMiddleware.serve(static_file, request)
        if isinstance(request, ASGIRequest) and response.streaming:
            response.streaming_content = _blocks(response.streaming_content)
        return response


async def _blocks(content: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the blocks of a file."""
    for block in content:
        yield block


URLENCODED = "application/x-www-form-urlencoded"
LARGEST_URLENCODED = 512 * 1024
"""Most bytes of such a body: decoding it takes sixty times its size."""


class BodyLimit(Middleware):
    """Check of bodies under WSGI; under ASGI `CallerLimits` checks them before they are read."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        length = request.META.get("CONTENT_LENGTH") or ""
        encoding = request.META.get("HTTP_TRANSFER_ENCODING") or ""
        media_type = request.META.get("CONTENT_TYPE") or ""
        refusal = refused_body(request.path, length, encoding, media_type)
        return refusal or self.get_response(request)


def refused_body(path: str, length: str, encoding: str, media_type: str) -> HttpResponse | None:
    """Return the refusal of a body that is too large (413) or of unknown length (411), else None.

    `length`, `encoding`, `media_type`: Content-Length, Transfer-Encoding and Content-Type, or "".
    """
    # 1. A body without a length could be endless.
    if not length and encoding:
        text = "the body does not say how long it is; send it whole, with Content-Length"
        return refused(path, 411, "length_required", text)
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    if limit is None or not length.isdecimal():
        return None

    # 2. Forms have a lower limit unless they are sent in parts.
    remedy = ""
    is_urlencoded = media_type.partition(";")[0].strip().lower() == URLENCODED
    if is_urlencoded and limit > LARGEST_URLENCODED:
        limit = LARGEST_URLENCODED
        remedy = f" as {URLENCODED}; send it as multipart/form-data"
    if int(length) <= limit:
        return None
    text = f"the body has {length} bytes; at most {limit} are taken{remedy}"
    return refused(path, 413, "too_large", text)


def refused(path: str, status: int, code: str, detail: str) -> HttpResponse:
    """Return a refusal: as JSON for addresses of the API, else as plain text."""
    if path.startswith("/api/"):
        return JsonResponse(error_body(code, detail), status=status)
    return HttpResponse(detail, status=status, content_type="text/plain")
