"""Middleware of our own: the content security policy, and static files that stream under ASGI too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from csp.middleware import CSPMiddleware, PolicyParts
from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware


class ContentSecurityPolicy(CSPMiddleware):
    """django-csp's middleware, with a policy of their own for the prefixes in CONTENT_SECURITY_POLICY_BY_PREFIX."""

    def get_policy_parts(self, request: HttpRequest, response: HttpResponseBase, report_only: bool = False) -> PolicyParts:
        """The response's policy; a prefix's policy replaces the default, not what a view has set for itself."""
        parts = super().get_policy_parts(request, response, report_only)
        if report_only or parts.config is not None:
            return parts
        for prefix, policy in settings.CONTENT_SECURITY_POLICY_BY_PREFIX.items():
            if request.path_info.startswith(prefix):
                parts.config = policy
                break
        return parts


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]  # whitenoise is untyped
    """WhiteNoise, whose answers an ASGI server would otherwise read whole, with a warning, before it sends them."""

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
