"""/metrics in Prometheus format, for operators and holders of the scrape token."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.http import HttpResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from controlplane.operations.metrics_state import StateCollector
from controlplane.web.http.metrics import http_registry
from controlplane.web.rest.authentication import BearerAuthentication

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Scraper(AnonymousUser):
    """Whoever has the scrape token: may read the metrics and nothing else."""


class ScrapeToken(BaseAuthentication):
    """`Authorization: Bearer <LOADMASTER_METRICS_TOKEN>`; works without the database."""

    def authenticate(self, request: Request) -> tuple[Scraper, str] | None:
        """The scraper; None for any other token, which may be an operator's."""
        given = request.META.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer ").encode()
        wanted = settings.METRICS_TOKEN.encode()
        return (Scraper(), "metrics") if wanted and hmac.compare_digest(given, wanted) else None

    def authenticate_header(self, request: Request) -> str:
        """Ask for a token (401) if none was sent; a wrong one is refused (403)."""
        return "Bearer"


class MayScrape(BasePermission):
    """The scrape token, or an operator."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Whether it is one of them."""
        return isinstance(request.user, Scraper) or bool(request.user and request.user.is_staff)


class MetricsView(APIView):
    """GET only."""

    authentication_classes = [ScrapeToken, BearerAuthentication, SessionAuthentication]
    permission_classes = [MayScrape]
    schema: Any = None

    def get(self, request: Request) -> HttpResponse:
        """All metrics as they are now."""
        return HttpResponse(
            exposition([StateCollector()]),
            content_type=CONTENT_TYPE,
            headers={"Cache-Control": "no-store"},
        )


def exposition(collectors: Iterable[Collector]) -> bytes:
    """The text of these collectors, followed by this machine's counters of requests."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry) + generate_latest(http_registry())
