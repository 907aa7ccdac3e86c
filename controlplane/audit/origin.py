"""Origin of a change: the request that is being answered, else this process on its machine."""

import getpass
import os
import socket
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponseBase

from controlplane.audit.models import Channel

CLIENT = "loadmaster/"
"""Beginning of the User-Agent of our own client."""

_request: ContextVar[HttpRequest | None] = ContextVar("audited request", default=None)


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a change: its actor (a user, or a name of the system), channel and address.

    `address`: of the client, or the name of the machine.
    """

    actor: str
    actor_id: int | None
    channel: Channel
    address: str


class Audited:
    """Middleware: changes during a request are made by its user.

    The user is looked up at each change, as the API authenticates later than middleware.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        token = _request.set(request)
        try:
            return self.get_response(request)
        finally:
            _request.reset(token)


def origin(by: User | None = None) -> Origin:
    """Return the origin of a change that is made now; `by`: its user, if the caller knows."""
    request = _request.get()
    if request is None:
        return _of_process(by)
    user = by or getattr(request, "user", None)
    address = str(request.META.get("REMOTE_ADDR", ""))
    if user is None:
        return Origin("", None, _channel(request), address)
    return Origin(user.get_username(), user.pk, _channel(request), address)


def _channel(request: HttpRequest) -> Channel:
    """Channel of a request, by its path and client."""
    if request.path_info.startswith("/api/"):
        is_client = request.headers.get("User-Agent", "").startswith(CLIENT)
        return Channel.CLI if is_client else Channel.REST
    if request.path_info.startswith("/admin/"):
        return Channel.ADMIN
    return Channel.PAGE


def _of_process(by: User | None) -> Origin:
    """Origin of a change without a request: a command, by a user or by one of the system."""
    host = socket.gethostname()
    if by is not None and by.pk is not None:
        return Origin(by.get_username(), by.pk, Channel.COMMAND, host)
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user without an entry in the system's table
        name = str(os.getuid())
    return Origin(f"{name} (system)", None, Channel.COMMAND, host)
