"""Limits of failed logins, tokens and enrolments, by address and account.

They are counted in the shared cache. While it is away, each process counts for itself.
"""

import hashlib
import ipaddress
import logging
import time
from dataclasses import dataclass

from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth.models import User
from django.core.cache import BaseCache, cache
from django.core.cache.backends.locmem import LocMemCache
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from redis.exceptions import RedisError

from controlplane.web.bounded_data import read_json
from controlplane.web.http.middleware import Middleware
from controlplane.web.rest.errors import error_body

log = logging.getLogger(__name__)

OWN_PAGE = "/password/"
"""Path of the page on which users change their passwords."""

DOORS = {
    "/login/": "login",
    "/admin/login/": "login",
    OWN_PAGE: "login",
    "/api/v1/tokens/": "login",
}
"""Names of counters by path: all paths that try a password have one counter."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Most failures within `window_s`."""

    failures: int
    window_s: int


class Throttle(Middleware):
    """Middleware: 429 with Retry-After after too many failures of an address or account."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        door = DOORS.get(request.path_info) if request.method == "POST" else None
        if door is None:
            return self.get_response(request)
        counts = begin(door, **_caller(request))
        refused = refusal(request, counts)
        if refused is not None:
            return refused

        # The attempt is allowed: make it.
        return end(request, self.get_response(request), counts)


@dataclass(frozen=True, slots=True)
class Count:
    """Counter of an address or account in the present window: `tries` with this attempt."""

    key: str
    tries: int
    limit: Limit


def begin(door: str, **callers: str) -> list[Count]:
    """Count an attempt as a failure before it is made; `take_back` a good one.

    `callers`: the caller's `address` and `account`.
    """
    counts = []
    for kind, caller in callers.items():
        limit = Limit(*settings.THROTTLES[f"{door}:{kind}"])
        counts.append(_count(f"{door}:{kind}:{caller}", limit))
    return counts


def retry_after_s(counts: list[Count]) -> int | None:
    """Return the seconds to wait if a count is above its limit, else None.

    A refused attempt is taken back.
    """
    windows_s = [count.limit.window_s for count in counts if count.tries > count.limit.failures]
    if not windows_s:
        return None
    take_back(counts)
    return max(int(window_s - time.time() % window_s) + 1 for window_s in windows_s)


def take_back(counts: list[Count]) -> None:
    """Take an attempt back that was no failure."""
    for count in counts:
        _add(count.key, -1, count.limit.window_s)


def refusal_text(retry_s: int) -> str:
    """Return the message of a refused attempt."""
    return f"too many failed tries; come back in {retry_s} seconds"


def refusal(request: HttpRequest, counts: list[Count]) -> HttpResponse | None:
    """Return the answer 429 if a count is above its limit, else None."""
    retry_s = retry_after_s(counts)
    if retry_s is None:
        return None
    log.warning("too many failures at %s", request.path_info)
    if request.path_info.startswith("/api/"):
        body = error_body("throttled", refusal_text(retry_s))
        answer: HttpResponse = JsonResponse(body, status=429)
    else:
        answer = render(request, "429.html", {"retry_s": retry_s}, status=429)
    answer["Retry-After"] = str(retry_s)
    return answer


def end(request: HttpRequest, answer: HttpResponseBase, counts: list[Count]) -> HttpResponseBase:
    """Take back an attempt that succeeded; set Retry-After if accounts are locked."""
    if not is_failure(request, answer):
        take_back(counts)
    if answer.status_code == 429 and "Retry-After" not in answer:
        answer["Retry-After"] = str(int(settings.AXES_COOLOFF_TIME * 3600))
    return answer


def is_failure(request: HttpRequest, answer: HttpResponseBase) -> bool:
    """Return True for wrong credentials: a page shows its form again (200), the API answers 401."""
    if answer.status_code in (401, 403, 429):
        return True
    is_page = not request.path_info.startswith("/api/")
    return is_page and answer.status_code == 200


def forget_later_failures() -> None:
    """Delete failures with a time in the future, which would lock their user out until then."""
    AccessAttempt.objects.filter(attempt_time__gt=timezone.now()).delete()


def network_of(address: str) -> str:
    """Return the address by which a caller is counted: for IPv6 the network of one customer."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if parsed.version == 6:
        return str(ipaddress.ip_network((parsed, 64), strict=False).network_address)
    return str(parsed)


def _caller(request: HttpRequest) -> dict[str, str]:
    """Return the address that opened the connection (proxies are trusted), and the account."""
    caller = {"address": network_of(request.META.get("REMOTE_ADDR", ""))}
    account = _account(request)
    if account:
        caller["account"] = hashlib.sha256(account.encode(errors="replace")).hexdigest()
    return caller


def _account(request: HttpRequest) -> str:
    """Return the name of the user whose password is tried, as the login resolves it; else ""."""
    if request.path_info == OWN_PAGE:
        return resolved_name(request.user.get_username())
    if not request.path_info.startswith("/api/"):
        return resolved_name(request.POST.get("username", ""))
    try:
        body = read_json(request.body)
    except ValueError:
        return ""
    name = body.get("username") if isinstance(body, dict) else ""
    return resolved_name(name) if isinstance(name, str) else ""


def resolved_name(typed: str) -> str:
    """Return a user's name as the login takes it: stripped, in one Unicode form and case."""
    return User.normalize_username(typed.strip()).lower()


def _count(name: str, limit: Limit) -> Count:
    """Count an attempt in the present window of its limit."""
    window = int(time.time() // limit.window_s)
    key = f"throttle:{name}:{window}"
    return Count(key, _add(key, 1, limit.window_s), limit)


_own_counts = LocMemCache("throttling", {})
"""Counters of this process, while the cache is away."""


def _add(key: str, amount: int, window_s: int) -> int:
    """Add to a counter; return its new number."""
    try:
        return _add_in(cache, key, amount, window_s)
    except (RedisError, OSError) as error:
        log.warning("the cache is away, this process counts for itself: %s", error)
        return _add_in(_own_counts, key, amount, window_s)


def _add_in(store: BaseCache, key: str, amount: int, window_s: int) -> int:
    """Add to a counter of this cache; return its new number."""
    store.add(key, 0, 2 * window_s)
    try:
        return int(store.incr(key, amount))
    except ValueError:  # the store has forgotten it in between
        store.add(key, max(0, amount), 2 * window_s)
        return max(0, amount)
