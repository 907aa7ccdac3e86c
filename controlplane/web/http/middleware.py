"""Middleware: content security policy, header and NUL checks, streaming static files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any

from csp.middleware import CSPMiddleware, PolicyParts
from django.conf import settings
from django.core.exceptions import BadRequest
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware

from controlplane.web.http.async_capable import Answer, AsyncCapable


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
