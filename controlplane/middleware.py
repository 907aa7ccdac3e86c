"""Middleware of our own: the content security policy."""

from __future__ import annotations

from csp.middleware import CSPMiddleware, PolicyParts
from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase


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
