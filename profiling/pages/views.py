"""The page of kinds."""

from __future__ import annotations

from typing import cast

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from profiling.pages.selectors import kinds_page


@require_GET
def kinds(request: HttpRequest) -> HttpResponse:
    """Speed of each kind on each GPU type, with the source of each number."""
    search = request.GET.get("search", "").strip()[:100]
    table, types, lines = kinds_page(cast(User, request.user), search)
    return render(
        request,
        "profiling/kinds.html",
        {"table": table, "types": types, "lines": lines, "search": search},
    )
