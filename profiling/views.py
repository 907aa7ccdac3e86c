"""The page of kinds."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.http import require_GET

from profiling.page_selectors import kinds_page


@require_GET
def kinds(request: HttpRequest) -> HttpResponse:
    """What is known of the speed of each kind of job on each GPU type, and where each number comes from."""
    search = request.GET.get("search", "").strip()[:100]
    page, types, rows = kinds_page(request.GET.get("page"), search)
    query = QueryDict(mutable=True)
    query.update({"search": search} if search else {})
    context = {"page": page, "types": types, "rows": rows, "search": search, "query": query.urlencode()}
    return render(request, "profiling/kinds.html", context)
