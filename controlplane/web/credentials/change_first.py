"""Middleware: who has logged in with a one-time password only gets to change it."""

from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.shortcuts import redirect

from controlplane.web.credentials.passwords import SESSION_KEY, WORDS
from controlplane.web.http.middleware import Middleware
from controlplane.web.rest.errors import error_body

ALLOWED = frozenset({"password", "logout", "live"})
"""Names of the addresses that somebody with a one-time password reaches."""


class ChangeFirst(Middleware):
    """Redirect to the page of the password, or 403 in the API."""

    def process_view(
        self, request: HttpRequest, view: object, args: object, kwargs: object
    ) -> HttpResponseBase | None:
        match = request.resolver_match
        if not request.session.get(SESSION_KEY) or (match and match.url_name in ALLOWED):
            return None
        if request.path_info.startswith("/api/"):
            return JsonResponse(error_body(SESSION_KEY, WORDS), status=403)
        return redirect("password")
