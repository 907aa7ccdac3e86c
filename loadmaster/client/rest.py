"""HTTP of the client: sending, retries, and exceptions for refusals."""

import math
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from loadmaster.version import __version__

TRIES = 5
"""Most attempts of a call that may be repeated."""

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
"""Longest pauses in seconds after the first attempt, and after any."""

RETRIED = frozenset({429, 500, 502, 503, 504})
"""Status codes after which a call is repeated."""

PAGE = 200
"""Rows that are asked for at once."""

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
        """Send a call and return the parsed answer. Raises LoadmasterError.

        Calls that read or replace something are repeated if they fail.
        """
        return content(self.send(method, path, repeatable=method in ("GET", "PUT"), **options))

    def pages(
        self, path: str, limit: int | None, filters: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of all pages, each once even if rows are inserted meanwhile.

        `limit`: most rows; None for all.
        """
        seen: set[str] = set()
        offset = 0
        left = limit
        while left is None or left > 0:
            # 1. Ask for a page.
            size = PAGE if left is None else min(PAGE, left)
            params = {**given(filters), "limit": size, "offset": offset}
            page = as_object(self.call("GET", path, params=params))

            # 2. An inserted row moves others to the next page, where they come a second time.
            rows = as_list(page.get("results"))
            fresh = [row for row in rows if _key(row) not in seen]
            seen.update(map(_key, fresh))
            yield from fresh
            offset += len(rows)
            if left is not None:
                left -= len(fresh)
            if not page.get("next") or not rows:
                return

    def send(self, method: str, path: str, *, repeatable: bool, **options: Any) -> httpx.Response:
        """Send a call and return the answer, also a refusal; try `repeatable` ones TRIES times.

        Raises LoadmasterError for a body that JSON cannot hold or a server that does not answer.
        """
        for name in _not_finite(options.get("json"), ""):
            raise LoadmasterError(f"{name}: must be a finite number; give one, or leave it out")
        attempts = TRIES if repeatable else 1
        for attempt in range(attempts):
            is_last = attempt + 1 == attempts
            try:
                answer = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                if is_last:
                    text = f"{self.url} does not answer: {error or type(error).__name__}"
                    raise ConnectionFailedError(text) from error
            else:
                if answer.status_code not in RETRIED or is_last:
                    return answer
            # Full jitter: clients that failed together do not come back together.
            longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)
            time.sleep(random.uniform(0, longest_s))  # noqa: S311  # a pause is no secret
        raise AssertionError("the last attempt returns or raises")


def _key(row: Mapping[str, Any]) -> str:
    """Return the id of a row, or its name if it has no id."""
    return str(row.get("id", row.get("name")))


def _not_finite(value: object, name: str) -> Iterator[str]:
    """Yield the places at which a body has NaN or infinity, which JSON does not know."""
    if isinstance(value, float) and not math.isfinite(value):
        yield name
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _not_finite(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _not_finite(inner, f"{name}[{number}]")


def content(answer: httpx.Response) -> Any:
    """Return the parsed content of an answer. Raises ApiError for a refusal."""
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
    """Return the exception for a refusal; a proxy's has no JSON that tells more."""
    error_class = _BY_STATUS.get(answer.status_code, ApiError)
    try:
        error = answer.json()["error"]
        code = str(error["code"])
        detail = str(error["detail"])
        fields = error.get("fields")
    except (ValueError, KeyError, TypeError):
        detail = f"the server answers {answer.status_code} {answer.reason_phrase}"
        return error_class(answer.status_code, "error", detail)
    return error_class(answer.status_code, code, detail, fields)


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def segment(name: str) -> str:
    """Quote a name as one segment of an address, so that it cannot lead elsewhere."""
    if not str(name).strip("."):
        raise LoadmasterError(f"{name!r} is no name")
    return quote(str(name), safe="")


def as_object(data: Any) -> dict[str, Any]:
    """Return data that are an object. Raises ConnectionFailedError for others."""
    if not isinstance(data, dict):
        raise ConnectionFailedError(UNEXPECTED)
    return data


def as_list(data: Any) -> list[dict[str, Any]]:
    """Return data that are a list. Raises ConnectionFailedError for others."""
    if not isinstance(data, list):
        raise ConnectionFailedError(UNEXPECTED)
    return data
