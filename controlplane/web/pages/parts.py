"""Pages of which htmx may ask for a part."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers


def page_or_part(
    request: HttpRequest, page: str, part: str, context: Mapping[str, Any]
) -> HttpResponse:
    """Render the part if htmx asks for it, else the whole page.

    htmx needs the whole page too when it restores one of the browser's history.
    """
    template = page
    restores_page = request.headers.get("HX-History-Restore-Request") == "true"
    if request.headers.get("HX-Request") == "true" and not restores_page:
        template = part
    response = render(request, template, dict(context))
    patch_vary_headers(response, ["HX-Request"])
    return response
