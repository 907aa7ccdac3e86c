"""One form of error for every REST answer: {"error": {"code", "detail", "fields"?}}."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response
from rest_framework.views import exception_handler as drf_exception_handler


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's answer in our form."""
    response = drf_exception_handler(error, context)
    if response is not None:
        code = getattr(error, "default_code", "error")
        detail = response.data
        plain = detail.get("detail") if isinstance(detail, dict) else None
        response.data = {
            "error": {"code": str(code), "detail": str(plain) if plain else "see fields", "fields": None if plain else detail}
        }
    return response
