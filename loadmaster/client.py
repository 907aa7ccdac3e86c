"""The Python client: `loadmaster.Client(url, token)` submits jobs, follows them and runs clusters over REST.

    with loadmaster.Client("https://loadmaster.example", token) as client:
        submission = client.submit({"name": "digits", "command": ["python", "train.py"], "steps": 1000, "gpus": "1..2"})
        for text in client.logs(submission.id, follow=True):
            print(text, end="")
        assert client.wait(submission.id).state == "completed"

Reading is retried when the network or the server fails for a moment; so is submitting, under one idempotency key. Everything that
goes wrong is a LoadmasterError.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import httpx

import loadmaster
from loadmaster.results import Job, JobEvent, LogPiece, Node, Policy, Profile, Round, Submission, Token, read, read_all

__all__ = [
    "ApiError", "AuthenticationError", "Client", "ConflictError", "ConnectionFailedError", "InvalidError", "LoadmasterError",
    "NotFoundError", "PermissionDeniedError", "WaitTimeoutError",
]  # fmt: skip

ENDED = ("completed", "failed", "cancelled")
TRIES = 5
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
RETRIED = frozenset({429, 500, 502, 503, 504})
PAGE = 200


class LoadmasterError(Exception):
    """Everything that this client raises."""


class ConnectionFailedError(LoadmasterError):
    """The server did not answer, or not understandably."""


class WaitTimeoutError(LoadmasterError):
    """The job was not over in time."""


class ApiError(LoadmasterError):
    """The server refused. `fields` holds its messages by field, where the request's content was wrong."""

    def __init__(self, status: int, code: str, detail: str, fields: Mapping[str, list[str]] | None = None) -> None:
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


class Client:
    """A connection to a server on behalf of one user. Safe to use from one thread at a time; close it, or use it with `with`."""

    def __init__(self, url: str, token: str = "", *, timeout_s: float = 30.0, transport: httpx.BaseTransport | None = None) -> None:
        headers = {"User-Agent": f"loadmaster/{loadmaster.__version__}", "Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        base = url.rstrip("/")
        if not base.startswith(("http://", "https://")):
            raise LoadmasterError(f"{url!r} is no address of a server; write one such as https://loadmaster.example")
        self.url = base
        self._http = httpx.Client(base_url=f"{base}/api/v1/", headers=headers, timeout=timeout_s, transport=transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # -- who ---------------------------------------------------------------------------------------------------------------------

    def login(self, username: str, password: str, *, valid_h: float | None = None) -> Token:
        """A token for name and password; this client uses it from now on."""
        body = {"username": username, "password": password, **({} if valid_h is None else {"valid_h": valid_h})}
        token = read(Token, self._call("POST", "tokens/", json=body))
        self._http.headers["Authorization"] = f"Bearer {token.token}"
        return token

    def logout(self) -> None:
        """Revoke the token this client uses."""
        self._call("DELETE", "tokens/current/")

    def whoami(self) -> Profile:
        """The caller, their teams, and whether they are an operator."""
        return read(Profile, self._call("GET", "me/"))

    # -- jobs --------------------------------------------------------------------------------------------------------------------

    def submit(self, job: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None, **fields: Any) -> Submission:
        """Submit a job, given as an object, as keywords, or both. Raises InvalidError with messages by field.

        Without a key one is made up for this call, so that repeating it after a lost answer cannot make a second job.
        """
        key = idempotency_key or str(uuid.uuid4())
        return self._submission("jobs/", {**(job or {}), **fields}, key)

    def clone(self, job_id: str, *, idempotency_key: str | None = None, **overrides: Any) -> Submission:
        """Submit a job's description again with some fields replaced."""
        return self._submission(f"jobs/{_segment(job_id)}/clone/", overrides, idempotency_key or str(uuid.uuid4()))

    def job(self, job_id: str) -> Job:
        """One job."""
        return read(Job, self._call("GET", f"jobs/{_segment(job_id)}/"))

    def jobs(self, *, limit: int | None = None, **filters: Any) -> Iterator[Job]:
        """Jobs, newest first; filters: state (one or several), team, cluster, mine, active, search."""
        return (read(Job, row) for row in self._pages("jobs/", limit, filters))

    def events(self, job_id: str) -> Iterator[JobEvent]:
        """Everything that happened to a job, oldest first."""
        return (read(JobEvent, row) for row in self._pages(f"jobs/{_segment(job_id)}/events/", None, {}))

    def assignments(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Where a job was and is, oldest first."""
        return self._pages(f"jobs/{_segment(job_id)}/assignments/", None, {})

    def cancel(self, job_id: str) -> Job:
        """Stop a job for good."""
        return self._act(job_id, "cancel")

    def hold(self, job_id: str) -> Job:
        """Keep a job out of the queue; one that runs saves a checkpoint first."""
        return self._act(job_id, "hold")

    def release(self, job_id: str) -> Job:
        """Let a held job into the queue."""
        return self._act(job_id, "release")

    def requeue(self, job_id: str) -> Job:
        """Give a failed or cancelled job another chance."""
        return self._act(job_id, "requeue")

    def wait(self, job_id: str, *, timeout_s: float | None = None, poll_s: float = 1.0) -> Job:
        """The job once it is over. Raises WaitTimeoutError."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while (job := self.job(job_id)).state not in ENDED:
            if end is not None and time.monotonic() >= end:
                raise WaitTimeoutError(f"job {job_id} is still {job.state} after {timeout_s:g} s")
            time.sleep(poll_s)
        return job

    def log_piece(
        self, job_id: str, *, stream: str = "stdout", cursor: str = "", offset: int | None = None, rank: int = 0
    ) -> LogPiece:
        """One piece of a job's log after `cursor`, or from byte `offset` (from the end where negative)."""
        query = {"stream": stream, "cursor": cursor or None, "offset": offset, "rank": rank or None}
        return read(LogPiece, self._call("GET", f"jobs/{_segment(job_id)}/logs/", params=_given(query)))

    def logs(
        self,
        job_id: str,
        *,
        follow: bool = False,
        stream: str = "stdout",
        offset: int | None = None,
        rank: int = 0,
        poll_s: float = 1.0,
    ) -> Iterator[str]:
        """The job's log as pieces of text; with `follow` until the job is over, across pre-emptions and migrations."""
        cursor = ""
        while True:
            piece = self.log_piece(job_id, stream=stream, cursor=cursor, offset=None if cursor else offset, rank=rank)
            moved, cursor = piece.cursor != cursor, piece.cursor
            if piece.text:
                yield piece.text
            if piece.done or (not follow and not piece.text and not moved):
                return
            if not piece.text and not moved:
                time.sleep(poll_s)

    # -- clusters ----------------------------------------------------------------------------------------------------------------

    def clusters(self) -> list[dict[str, Any]]:
        """Clusters with policy, parameters and clockwork."""
        return list(self._pages("clusters/", None, {}))

    def cluster(self, name: str) -> dict[str, Any]:
        """One cluster."""
        return _object(self._call("GET", f"clusters/{_segment(name)}/"))

    def set_cluster(self, name: str, **values: Any) -> dict[str, Any]:
        """Change a cluster's policy, policy_parameters, clockwork or limits (operators)."""
        return _object(self._call("PATCH", f"clusters/{_segment(name)}/", json=values))

    def reschedule(self, cluster: str) -> None:
        """Ask for a round now (operators)."""
        self._call("POST", f"clusters/{_segment(cluster)}/reschedule/")

    def nodes(self, *, cluster: str | None = None) -> Iterator[Node]:
        """The nodes, of one cluster or of all."""
        return (read(Node, row) for row in self._pages("nodes/", None, {"cluster": cluster}))

    def cordon(self, node_id: str, reason: str = "") -> Node:
        """Let a node take no new work (operators)."""
        return self._node(node_id, "cordon", {"reason": reason})

    def uncordon(self, node_id: str) -> Node:
        """Let a node take work again (operators)."""
        return self._node(node_id, "uncordon", {})

    def drain(self, node_id: str, *, until: str | None = None, reason: str = "") -> Node:
        """Move what runs on a node away, at once or by `until` (ISO 8601; operators)."""
        return self._node(node_id, "drain", {"until": until, "reason": reason})

    def set_role(self, node_id: str, role: str) -> Node:
        """Make a node one for production, profiling or both (operators)."""
        return self._node(node_id, "role", {"role": role})

    def enrolment_token(self, cluster: str, *, role: str = "production", valid_h: float = 24.0) -> str:
        """A token that lets one machine in (operators)."""
        body = {"cluster": cluster, "role": role, "valid_h": valid_h}
        return str(_object(self._call("POST", "enrolment-tokens/", json=body))["token"])

    def policies(self) -> list[Policy]:
        """The policies a cluster may choose from."""
        return read_all(Policy, self._call("GET", "policies/"))

    def rounds(self, *, cluster: str | None = None, limit: int | None = None) -> Iterator[Round]:
        """Rounds, newest first."""
        return (read(Round, row) for row in self._pages("rounds/", limit, {"cluster": cluster}))

    def gpu_types(self) -> list[dict[str, Any]]:
        """The GPU types."""
        return list(self._pages("gpu-types/", None, {}))

    # -- secrets -----------------------------------------------------------------------------------------------------------------

    def secrets(self, team: str) -> list[str]:
        """Names of a team's secrets."""
        return [str(row["name"]) for row in _list(self._call("GET", f"teams/{_segment(team)}/secrets/"))]

    def set_secret(self, team: str, name: str, value: str) -> None:
        """Make or replace a team's secret."""
        self._call("PUT", f"teams/{_segment(team)}/secrets/{_segment(name)}/", json={"value": value})

    def delete_secret(self, team: str, name: str) -> None:
        """Remove a team's secret."""
        self._call("DELETE", f"teams/{_segment(team)}/secrets/{_segment(name)}/")

    # -- inside ------------------------------------------------------------------------------------------------------------------

    def _submission(self, path: str, body: Mapping[str, Any], key: str) -> Submission:
        answer = self._send("POST", path, repeatable=True, json=dict(body), headers={"Idempotency-Key": key})
        data = _object(_content(answer))
        return Submission(read(Job, data), tuple(data.get("warnings", ())), created=answer.status_code == 201)

    def _act(self, job_id: str, verb: str) -> Job:
        return read(Job, self._call("POST", f"jobs/{_segment(job_id)}/{verb}/"))

    def _node(self, node_id: str, verb: str, body: Mapping[str, Any]) -> Node:
        return read(Node, self._call("POST", f"nodes/{_segment(node_id)}/{verb}/", json=_given(body)))

    def _pages(self, path: str, limit: int | None, filters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Rows page after page. A row that slips onto the next page while others come in is not given twice."""
        seen: set[str] = set()
        offset, left = 0, limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = _object(self._call("GET", path, params={**_given(filters), "limit": size, "offset": offset}))
            rows = _list(page.get("results"))
            fresh = [r for r in rows if (key := str(r.get("id", r.get("name")))) not in seen and not seen.add(key)]
            yield from fresh
            left = None if left is None else left - len(fresh)
            offset += len(rows)
            if not page.get("next") or not rows:
                return

    def _call(self, method: str, path: str, **options: Any) -> Any:
        return _content(self._send(method, path, repeatable=method in ("GET", "PUT"), **options))

    def _send(self, method: str, path: str, *, repeatable: bool, **options: Any) -> httpx.Response:
        """The answer. What may be repeated without harm is, with growing pauses, when the network or the server fails."""
        for attempt in range(TRIES if repeatable else 1):
            last = attempt + 1 == (TRIES if repeatable else 1)
            try:
                answer = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                if last:
                    raise ConnectionFailedError(f"{self.url} does not answer: {error or type(error).__name__}") from error
            else:
                if answer.status_code not in RETRIED or last:
                    return answer
            # Full jitter: clients that failed together do not come back together.
            time.sleep(random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)))  # noqa: S311  # no secret
        raise AssertionError("the last attempt returns or raises")


def _content(answer: httpx.Response) -> Any:
    if answer.is_error:
        raise _error(answer)
    if answer.status_code in (202, 204) or not answer.content:
        return None
    try:
        return answer.json()
    except ValueError as error:
        raise ConnectionFailedError(f"{answer.url} answers something that is no JSON; is it a Loadmaster server?") from error


def _error(answer: httpx.Response) -> ApiError:
    try:
        body = answer.json()["error"]
        code, detail, fields = str(body["code"]), str(body["detail"]), body.get("fields")
    except (ValueError, KeyError, TypeError):
        code, detail, fields = "error", f"the server answers {answer.status_code} {answer.reason_phrase}", None
    return _BY_STATUS.get(answer.status_code, ApiError)(answer.status_code, code, detail, fields)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _segment(name: str) -> str:
    """A name as one segment of an address, so that it cannot lead elsewhere."""
    from urllib.parse import quote

    if not str(name).strip("."):
        raise LoadmasterError(f"{name!r} is no name")
    return quote(str(name), safe="")


def _object(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ConnectionFailedError("the server answers something unexpected; is it a Loadmaster server?")
    return data


def _list(data: Any) -> list[dict[str, Any]]:
    if not isinstance(data, list):
        raise ConnectionFailedError("the server answers something unexpected; is it a Loadmaster server?")
    return data
