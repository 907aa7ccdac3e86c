"""Middleware: people with a one-time password can only change it after they have logged in."""

from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.shortcuts import redirect

from controlplane.web.credentials.passwords import CHANGE_IT, SESSION_KEY
from controlplane.web.http.middleware import Middleware
from controlplane.web.rest.errors import error_body

ALLOWED = frozenset({"password", "logout", "live"})
"""Names of the URLs that people with a one-time password reach."""


class ChangeFirst(Middleware):
    """Middleware that redirects to the page of the password, or answers 403 in the API."""

    def process_view(
        self, request: HttpRequest, view: object, args: object, kwargs: object
    ) -> HttpResponseBase | None:
        if not request.session.get(SESSION_KEY):
            return None
        match = request.resolver_match
        if match and match.url_name in ALLOWED:
            return None
        if request.path_info.startswith("/api/"):
            return JsonResponse(error_body(SESSION_KEY, CHANGE_IT), status=403)
        return redirect("password")
