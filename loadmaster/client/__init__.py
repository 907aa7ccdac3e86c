"""Python client: submits jobs, follows them and runs clusters over REST.

    with loadmaster.Client("https://loadmaster.example", token) as client:
        job = {"name": "digits", "command": ["python", "train.py"], "steps": 1000}
        submission = client.submit(job)
        for text in client.logs(submission.id, follow=True):
            print(text, end="")
        assert client.wait(submission.id).state == "completed"

Reading and submitting (under one idempotency key) are retried. All errors are LoadmasterErrors.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from loadmaster.client.account import credentials
from loadmaster.client.rest import (
    ApiError,
    AuthenticationError,
    ConflictError,
    ConnectionFailedError,
    InvalidError,
    LoadmasterError,
    NotFoundError,
    PermissionDeniedError,
    Rest,
    WaitTimeoutError,
    as_list,
    as_object,
    content,
    given,
    segment,
)
from loadmaster.client.results import (
    Costs,
    Job,
    JobArray,
    JobEvent,
    LogPiece,
    Node,
    Policy,
    Profile,
    Round,
    StartNow,
    Submission,
    SubmissionForecast,
    Token,
    read,
)
from loadmaster.client.simulations import SimulationCalls

__all__ = [
    "ApiError",
    "AuthenticationError",
    "Client",
    "ConflictError",
    "ConnectionFailedError",
    "InvalidError",
    "LoadmasterError",
    "NotFoundError",
    "PermissionDeniedError",
    "WaitTimeoutError",
]

ENDED = ("completed", "failed", "cancelled")
"""States of a job that is over."""

MOST_A_CALL = 100
"""Most jobs that a server accepts in one call."""

_REFUSALS: Mapping[str, tuple[int, type[ApiError]]] = {
    "invalid": (400, InvalidError),
    "conflict": (409, ConflictError),
}
"""Status and error of a job that is refused among others, by code."""


class Client(SimulationCalls):
    """A connection to a server for one user and one thread at a time; a context manager."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._rest = Rest(url, token, timeout_s, transport)
        self.url = self._rest.url

    @classmethod
    def logged_in(cls) -> Client:
        """Client of the last `loadmaster login`; LOADMASTER_URL and LOADMASTER_TOKEN override."""
        url = os.environ.get("LOADMASTER_URL", "")
        token = os.environ.get("LOADMASTER_TOKEN", "")
        account = credentials(url, token)
        return cls(account.url, account.token)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._rest.close()

    def login(
        self,
        username: str,
        password: str,
        *,
        valid_h: float | None = None,
        scope: str | None = None,
        new_password: str | None = None,
    ) -> Token:
        """Return a token for name and password; this client uses it from now on.

        `scope`: "read", "submit" or "operate" (default). A one-time password needs a new one.
        """
        body = {
            "username": username,
            "password": password,
            "valid_h": valid_h,
            "scope": scope,
            "new_password": new_password,
        }
        token = read(Token, self._rest.call("POST", "tokens/", json=given(body)))
        self._rest.use(token.token)
        return token

    def logout(self) -> None:
        """Revoke the token this client uses."""
        self._rest.call("DELETE", "tokens/current/")

    def tokens(self) -> list[Token]:
        """Your tokens that are still good, newest first."""
        return [read(Token, row) for row in as_list(self._rest.call("GET", "tokens/"))]

    def revoke(self, token_id: str) -> None:
        """End one of your tokens."""
        self._rest.call("DELETE", f"tokens/{segment(token_id)}/")

    def whoami(self) -> Profile:
        """The caller, their teams, and whether they are an operator."""
        return read(Profile, self._rest.call("GET", "me/"))

    def submit(
        self,
        job: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Submission:
        """Submit a job, given as an object, as keywords, or both. Raises InvalidError by field.

        Without a key one is made up, so repeating the call after a lost answer makes no second job.
        """
        key = idempotency_key or str(uuid.uuid4())
        return self._submission("jobs/", {**(job or {}), **fields}, key)

    def forecast(self, job: Mapping[str, Any]) -> SubmissionForecast:
        """When and where a job would start; submits nothing. Raises InvalidError by field."""
        answer = self._rest.call("POST", "job-forecasts/", json=dict(job))
        return read(SubmissionForecast, answer)

    def submit_many(
        self, jobs: Sequence[Mapping[str, Any]], *, idempotency_keys: Sequence[str] | None = None
    ) -> list[Submission | ApiError]:
        """Submit many jobs, a hundred a call; return a result for each, in their order.

        In the place of a refused job is the error that `submit` would have raised.
        """
        # 1. A key for each job, so that a repeated call makes no second one.
        keys = idempotency_keys
        if keys is None:
            keys = [str(uuid.uuid4()) for _ in jobs]
        if len(keys) != len(jobs):
            text = f"there are {len(jobs)} jobs and {len(keys)} idempotency keys"
            raise LoadmasterError(f"{text}; give one for each job")
        submissions = []
        for job, key in zip(jobs, keys, strict=True):
            submissions.append({"job": dict(job), "idempotency_key": key})

        # 2. Submit them in calls of MOST_A_CALL.
        outcomes: list[Submission | ApiError] = []
        for start in range(0, len(submissions), MOST_A_CALL):
            body = {"jobs": submissions[start : start + MOST_A_CALL]}
            answer = self._rest.send("POST", "jobs/bulk/", repeatable=True, json=body)
            for row in as_list(as_object(content(answer)).get("results")):
                outcomes.append(_outcome(as_object(row)))
        return outcomes

    def clone(
        self, job_id: str, *, idempotency_key: str | None = None, **overrides: Any
    ) -> Submission:
        """Submit a job's description again with some fields replaced."""
        key = idempotency_key or str(uuid.uuid4())
        return self._submission(f"jobs/{segment(job_id)}/clone/", overrides, key)

    def job(self, job_id: str) -> Job:
        """One job."""
        return read(Job, self._rest.call("GET", f"jobs/{segment(job_id)}/"))

    def jobs(self, *, limit: int | None = None, **filters: Any) -> Iterator[Job]:
        """Jobs, newest first; filters: state, team, cluster, mine, active, search, array, index.

        `fold`: of each array only one element.
        """
        return (read(Job, row) for row in self._rest.pages("jobs/", limit, filters))

    def array(self, array_id: str) -> JobArray:
        """One array of jobs; `jobs(array=...)` lists its elements."""
        return read(JobArray, self._rest.call("GET", f"arrays/{segment(array_id)}/"))

    def act_on_array(self, array_id: str, verb: str) -> JobArray:
        """Cancel, hold, release or requeue all elements of an array that allow it."""
        path = f"arrays/{segment(array_id)}/{segment(verb)}/"
        return read(JobArray, self._rest.call("POST", path))

    def events(self, job_id: str) -> Iterator[JobEvent]:
        """Everything that happened to a job, oldest first."""
        rows = self._rest.pages(f"jobs/{segment(job_id)}/events/", None, {})
        return (read(JobEvent, row) for row in rows)

    def assignments(self, job_id: str) -> Iterator[dict[str, Any]]:
        """List a job's placements, oldest first."""
        return self._rest.pages(f"jobs/{segment(job_id)}/assignments/", None, {})

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

    def start_now(self, job_id: str) -> StartNow:
        """Return the changes that would start a waiting job now, cheapest first; makes none."""
        return read(StartNow, self._rest.call("GET", f"jobs/{segment(job_id)}/start-now/"))

    def wait(self, job_id: str, *, timeout_s: float | None = None, poll_s: float = 1.0) -> Job:
        """Wait until a job is over, and return it. Raises WaitTimeoutError."""
        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            job = self.job(job_id)
            if job.state in ENDED:
                return job
            if time.monotonic() >= end_s:
                raise WaitTimeoutError(f"job {job_id} is still {job.state} after {timeout_s:g} s")
            time.sleep(poll_s)

    def log_piece(
        self,
        job_id: str,
        *,
        stream: str = "stdout",
        cursor: str = "",
        offset: int | None = None,
        rank: int = 0,
    ) -> LogPiece:
        """A piece of a job's log after `cursor` or byte `offset` (negative: from the end)."""
        query = {"stream": stream, "cursor": cursor or None, "offset": offset, "rank": rank or None}
        path = f"jobs/{segment(job_id)}/logs/"
        return read(LogPiece, self._rest.call("GET", path, params=given(query)))

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
        """Yield the job's log in pieces of text; with `follow` until the job is over."""
        cursor = ""
        while True:
            piece = self.log_piece(
                job_id, stream=stream, cursor=cursor, offset=None if cursor else offset, rank=rank
            )
            is_new = piece.text != "" or piece.cursor != cursor
            cursor = piece.cursor
            if piece.text:
                yield piece.text
            if piece.done:
                return
            if not is_new:
                if not follow:
                    return
                time.sleep(poll_s)

    def clusters(self) -> list[dict[str, Any]]:
        """List clusters with policy, parameters and intervals."""
        return list(self._rest.pages("clusters/", None, {}))

    def cluster(self, name: str) -> dict[str, Any]:
        """One cluster."""
        return as_object(self._rest.call("GET", f"clusters/{segment(name)}/"))

    def set_cluster(self, name: str, **values: Any) -> dict[str, Any]:
        """Change a cluster's policy, policy_parameters, intervals or limits (operators)."""
        return as_object(self._rest.call("PATCH", f"clusters/{segment(name)}/", json=values))

    def reschedule(self, cluster: str) -> None:
        """Ask for a round now (operators)."""
        self._rest.call("POST", f"clusters/{segment(cluster)}/reschedule/")

    def nodes(self, *, cluster: str | None = None) -> Iterator[Node]:
        """The nodes, of one cluster or of all."""
        return (read(Node, row) for row in self._rest.pages("nodes/", None, {"cluster": cluster}))

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

    def set_slots(self, node_id: str, slots: int, devices: Sequence[str] = ()) -> Node:
        """Let `slots` jobs share each GPU of a node, or each of `devices` (uuids; operators)."""
        return self._node(node_id, "slots", {"slots": slots, "devices": list(devices)})

    def enrolment_token(
        self, cluster: str, *, role: str = "production", valid_h: float = 24.0, node: str = ""
    ) -> str:
        """A token that lets one machine in (operators), in place of `node` if that is named."""
        body = {"cluster": cluster, "role": role, "valid_h": valid_h}
        if node:
            body["node"] = node
        return str(as_object(self._rest.call("POST", "enrolment-tokens/", json=body))["token"])

    def policies(self) -> list[Policy]:
        """The policies a cluster may choose from."""
        return [read(Policy, row) for row in as_list(self._rest.call("GET", "policies/"))]

    def rounds(self, *, cluster: str | None = None, limit: int | None = None) -> Iterator[Round]:
        """Rounds, newest first."""
        rows = self._rest.pages("rounds/", limit, {"cluster": cluster})
        return (read(Round, row) for row in rows)

    def costs(
        self,
        *,
        by: str = "team",
        cluster: str | None = None,
        period: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> Costs:
        """Energy and cost by group, of a named period (7d) or between ISO 8601 times."""
        query = {"by": by, "cluster": cluster, "period": period, "from": since, "to": until}
        return read(Costs, self._rest.call("GET", "costs/", params=given(query)))

    def gpu_types(self) -> list[dict[str, Any]]:
        """The GPU types."""
        return list(self._rest.pages("gpu-types/", None, {}))

    def kinds(self) -> Iterator[dict[str, Any]]:
        """Known speeds of your jobs' kinds (operators: all), newest first."""
        return self._rest.pages("kinds/", None, {})

    def forget_kind(self, kind_id: int) -> dict[str, Any]:
        """Have a kind measured anew; its numbers stay as estimates until then."""
        return as_object(self._rest.call("POST", f"kinds/{int(kind_id)}/forget/"))

    def secrets(self, team: str) -> list[str]:
        """Names of a team's secrets."""
        rows = as_list(self._rest.call("GET", f"teams/{segment(team)}/secrets/"))
        return [str(row["name"]) for row in rows]

    def set_secret(self, team: str, name: str, value: str) -> None:
        """Make or replace a team's secret."""
        path = f"teams/{segment(team)}/secrets/{segment(name)}/"
        self._rest.call("PUT", path, json={"value": value})

    def delete_secret(self, team: str, name: str) -> None:
        """Remove a team's secret."""
        self._rest.call("DELETE", f"teams/{segment(team)}/secrets/{segment(name)}/")

    def _submission(self, path: str, body: Mapping[str, Any], key: str) -> Submission:
        headers = {"Idempotency-Key": key}
        answer = self._rest.send("POST", path, repeatable=True, json=dict(body), headers=headers)
        return _submission_of(as_object(content(answer)), created=answer.status_code == 201)

    def _act(self, job_id: str, verb: str) -> Job:
        return read(Job, self._rest.call("POST", f"jobs/{segment(job_id)}/{verb}/"))

    def _node(self, node_id: str, verb: str, body: Mapping[str, Any]) -> Node:
        path = f"nodes/{segment(node_id)}/{verb}/"
        return read(Node, self._rest.call("POST", path, json=given(body)))


def _submission_of(job: Mapping[str, Any], *, created: bool) -> Submission:
    return Submission(read(Job, job), tuple(job.get("warnings", ())), created=created)


def _outcome(row: Mapping[str, Any]) -> Submission | ApiError:
    """Return the submission of a job among others, or the error by which it was refused."""
    if row.get("job"):
        return _submission_of(as_object(row["job"]), created=bool(row.get("created")))
    error = as_object(row.get("error"))
    code = str(error.get("code"))
    status, error_class = _REFUSALS.get(code, (400, ApiError))
    return error_class(status, code, str(error.get("detail")), error.get("fields"))
