"""Pages of which htmx may ask for a part."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers


def page_or_part(
    request: HttpRequest, page: str, part: str, context: Mapping[str, Any]
) -> HttpResponse:
    """Render the part if htmx asks for it, else the whole page, as for a page of the history."""
    headers = request.headers
    restores = headers.get("HX-History-Restore-Request") == "true"
    is_part = headers.get("HX-Request") == "true" and not restores
    response = render(request, part if is_part else page, dict(context))
    patch_vary_headers(response, ["HX-Request"])
    return response
