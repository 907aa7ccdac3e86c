"""HTTP of the client: sending, retries, errors from refusals. Exceptions come first."""

import math
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from loadmaster.version import __version__

TRIES = 5
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
RETRIED = frozenset({429, 500, 502, 503, 504})
PAGE = 200
UNEXPECTED = "the server's answer is not that of a Loadmaster server; check its address"


class LoadmasterError(Exception):
    """Everything that this client raises."""


class ConnectionFailedError(LoadmasterError):
    """The server did not answer, or not understandably."""


class WaitTimeoutError(LoadmasterError):
    """The job was not over in time."""


class ApiError(LoadmasterError):
    """The server refused; `fields` holds messages by field."""

    def __init__(
        self, status: int, code: str, detail: str, fields: Mapping[str, list[str]] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.fields = dict(fields or {})


class InvalidError(ApiError):
    """400 and 413: the request's content is wrong; see `fields`."""


class AuthenticationError(ApiError):
    """401: no token, or one that is wrong, revoked or expired."""


class PermissionDeniedError(ApiError):
    """403: only operators may."""


class NotFoundError(ApiError):
    """404: there is no such thing, or you may not see it."""


class ConflictError(ApiError):
    """409: the thing's present state does not allow it."""


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: InvalidError,
    413: InvalidError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
}


class Rest:
    """A connection to a server on behalf of one user."""

    def __init__(
        self, url: str, token: str, timeout_s: float, transport: httpx.BaseTransport | None
    ) -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            text = "is no address of a server; write one such as https://loadmaster.example"
            raise LoadmasterError(f"{url!r} {text}")
        headers = {"User-Agent": f"loadmaster/{__version__}", "Accept": "application/json"}
        self._http = httpx.Client(
            base_url=f"{self.url}/api/v1/", headers=headers, timeout=timeout_s, transport=transport
        )
        if token:
            self.use(token)

    def use(self, token: str) -> None:
        """Send this token from now on."""
        if not token.isascii() or not token.isprintable():
            raise LoadmasterError("the token holds characters that no token has; copy it again")
        self._http.headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(self, method: str, path: str, **options: Any) -> Any:
        """The parsed answer; reading and replacing are tried again. Raises LoadmasterError."""
        return content(self.send(method, path, repeatable=method in ("GET", "PUT"), **options))

    def pages(
        self, path: str, limit: int | None, filters: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """Rows over all pages, each once even if rows are inserted meanwhile."""
        seen: set[str] = set()
        offset, left = 0, limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            params = {**given(filters), "limit": size, "offset": offset}
            page = as_object(self.call("GET", path, params=params))
            rows = as_list(page.get("results"))
            fresh = [row for row in rows if str(row.get("id", row.get("name"))) not in seen]
            seen.update(str(row.get("id", row.get("name"))) for row in fresh)
            yield from fresh
            left = None if left is None else left - len(fresh)
            offset += len(rows)
            if not page.get("next") or not rows:
                return

    def send(self, method: str, path: str, *, repeatable: bool, **options: Any) -> httpx.Response:
        """The answer; idempotent calls are retried with growing pauses."""
        for name in _not_finite(options.get("json"), ""):
            raise LoadmasterError(f"{name}: must be a finite number; give one, or leave it out")
        for attempt in range(TRIES if repeatable else 1):
            last = attempt + 1 == (TRIES if repeatable else 1)
            try:
                answer = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                if last:
                    text = f"{self.url} does not answer: {error or type(error).__name__}"
                    raise ConnectionFailedError(text) from error
            else:
                if answer.status_code not in RETRIED or last:
                    return answer
            # Full jitter: clients that failed together do not come back together.
            longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)
            time.sleep(random.uniform(0, longest_s))  # noqa: S311  # no secret
        raise AssertionError("the last attempt returns or raises")


def _not_finite(value: object, name: str) -> Iterator[str]:
    """Yield where a body has NaN or infinity, which JSON does not know."""
    if isinstance(value, float) and not math.isfinite(value):
        yield name
    elif isinstance(value, Mapping):
        for key, of in value.items():
            yield from _not_finite(of, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for number, of in enumerate(value):
            yield from _not_finite(of, f"{name}[{number}]")


def content(answer: httpx.Response) -> Any:
    """Content of an answer; ApiError for a refusal."""
    if answer.is_error:
        raise _error(answer)
    if answer.status_code in (202, 204) or not answer.content:
        return None
    try:
        return answer.json()
    except ValueError as error:
        text = f"{answer.url} answers without JSON; check that it is a Loadmaster server"
        raise ConnectionFailedError(text) from error


def _error(answer: httpx.Response) -> ApiError:
    try:
        body = answer.json()["error"]
        code, detail, fields = str(body["code"]), str(body["detail"]), body.get("fields")
    except (ValueError, KeyError, TypeError):
        detail = f"the server answers {answer.status_code} {answer.reason_phrase}"
        code, fields = "error", None
    return _BY_STATUS.get(answer.status_code, ApiError)(answer.status_code, code, detail, fields)


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def segment(name: str) -> str:
    """A name as one segment of an address, so that it cannot lead elsewhere."""
    if not str(name).strip("."):
        raise LoadmasterError(f"{name!r} is no name")
    return quote(str(name), safe="")


def as_object(data: Any) -> dict[str, Any]:
    """The data if it is an object; no Loadmaster server answers otherwise."""
    if not isinstance(data, dict):
        raise ConnectionFailedError(UNEXPECTED)
    return data


def as_list(data: Any) -> list[dict[str, Any]]:
    """The data if it is a list; no Loadmaster server answers otherwise."""
    if not isinstance(data, list):
        raise ConnectionFailedError(UNEXPECTED)
    return data
