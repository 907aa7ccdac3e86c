"""What every middleware of ours begins with: it works under WSGI and under ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase

Answer = HttpResponseBase | Awaitable[HttpResponseBase]


class AsyncCapable:
    """A middleware that Django need not put into a thread, nor anything inside it. `get_response`
    gives an HttpResponseBase, or a coroutine of one where `later` is true.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.later = iscoroutinefunction(get_response)
        if self.later:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        """The answer, or a coroutine of it."""
        return self.get_response(request)
