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

COUNTER_OF_PATH = {
    "/login/": "login",
    "/admin/login/": "login",
    OWN_PAGE: "login",
    "/api/v1/tokens/": "login",
}
"""Counter of failures by path: all paths that try a password have one counter."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Most failures within `window_s`."""

    failures: int
    window_s: int


@dataclass(frozen=True, slots=True)
class AttemptCount:
    """Count of an address or account in the present window of its limit.

    `attempts`: failures of the window and this attempt. `key`: where the cache has their number.
    """

    key: str
    attempts: int
    limit: Limit


class Throttle(Middleware):
    """Middleware: 429 with Retry-After after too many failures of an address or account."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        counter = COUNTER_OF_PATH.get(request.path_info) if request.method == "POST" else None
        if counter is None:
            return self.get_response(request)

        # 1. Count the attempt before it is made, so that many at once do not pass the limit.
        counts = count_attempt(counter, **_caller(request))
        refusal = _refusal(request, counts)
        if refusal is not None:
            return refusal

        # 2. Make it, and take it back if it was no failure.
        answer = self.get_response(request)
        if not is_failure(request, answer):
            take_back(counts)

        # 3. If the account is locked, say for how long.
        if answer.status_code == 429 and "Retry-After" not in answer:
            answer["Retry-After"] = str(int(settings.AXES_COOLOFF_TIME * 3600))
        return answer


def count_attempt(counter: str, **callers: str) -> list[AttemptCount]:
    """Count an attempt as a failure before it is made; `take_back` one that succeeds.

    `callers`: the caller's `address` and, if known, `account`.
    """
    counts = []
    for caller_kind, caller in callers.items():
        limit = Limit(*settings.THROTTLES[f"{counter}:{caller_kind}"])
        counts.append(_count(f"{counter}:{caller_kind}:{caller}", limit))
    return counts


def retry_after_s(counts: list[AttemptCount]) -> int | None:
    """Return the seconds to wait if a count is above its limit, else None.

    A refused attempt is taken back.
    """
    exceeded = [count.limit for count in counts if count.attempts > count.limit.failures]
    if not exceeded:
        return None
    take_back(counts)

    # A window begins at each multiple of its length since the epoch.
    waits_s = []
    for limit in exceeded:
        elapsed_s = time.time() % limit.window_s
        waits_s.append(int(limit.window_s - elapsed_s) + 1)
    return max(waits_s)


def take_back(counts: list[AttemptCount]) -> None:
    """Take back an attempt that was no failure."""
    for count in counts:
        _add(count.key, -1, count.limit.window_s)


def refusal_text(retry_s: int) -> str:
    """Return the message for a refused attempt."""
    return f"too many failed tries; come back in {retry_s} seconds"


def _refusal(request: HttpRequest, counts: list[AttemptCount]) -> HttpResponse | None:
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


def is_failure(request: HttpRequest, answer: HttpResponseBase) -> bool:
    """Return True for wrong credentials: a page shows its form again (200), the API answers 401.

    403 and 429 count as well: an account may be locked.
    """
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
    """Return `address` and, if the request names one, `account` (hashed) of a caller.

    The address is that of the connection, which a trusted proxy has set.
    """
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


def resolved_name(username: str) -> str:
    """Return a user's name as the login takes it: stripped, in one Unicode form and case."""
    return User.normalize_username(username.strip()).lower()


def _count(name: str, limit: Limit) -> AttemptCount:
    """Count an attempt in the present window of its limit."""
    window_number = int(time.time() // limit.window_s)
    key = f"throttle:{name}:{window_number}"
    attempts = _add(key, 1, limit.window_s)
    return AttemptCount(key, attempts, limit)


_own_counts = LocMemCache("throttling", {})
"""Counts of this process, while the cache is away."""


def _add(key: str, amount: int, window_s: int) -> int:
    """Add to a count, and return the sum. Falls back on this process' own without the cache."""
    try:
        return _add_to_store(cache, key, amount, window_s)
    except (RedisError, OSError) as error:
        log.warning("the cache is away, this process counts for itself: %s", error)
        return _add_to_store(_own_counts, key, amount, window_s)


def _add_to_store(store: BaseCache, key: str, amount: int, window_s: int) -> int:
    """Add to a count of this cache, and return the sum. It is kept until its window is over."""
    store.add(key, 0, 2 * window_s)
    try:
        return int(store.incr(key, amount))
    except ValueError:  # the cache has dropped it since the line before
        store.add(key, max(0, amount), 2 * window_s)
        return max(0, amount)
