"""Middleware of our own: the content security policy."""

from __future__ import annotations

from csp.middleware import CSPMiddleware


class ContentSecurityPolicy(CSPMiddleware):
    """django-csp's middleware; settings hold the strict policy of our pages and the admin's own."""
