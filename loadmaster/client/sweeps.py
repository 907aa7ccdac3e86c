"""Many jobs in one call: what the client asks for, and how it reads what came of each."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadmaster.client.rest import (
    ApiError,
    ConflictError,
    InvalidError,
    LoadmasterError,
    as_list,
    as_object,
)
from loadmaster.client.results import Job, Submission, read

MOST_A_CALL = 100

_REFUSALS: Mapping[str, tuple[int, type[ApiError]]] = {
    "invalid": (400, InvalidError),
    "conflict": (409, ConflictError),
}


def calls(
    jobs: Sequence[Mapping[str, Any]], keys: Sequence[str] | None
) -> Iterator[dict[str, Any]]:
    """Bodies of the calls that submit these jobs, each with its key or a new one."""
    if keys is not None and len(keys) != len(jobs):
        text = f"there are {len(jobs)} jobs and {len(keys)} idempotency keys"
        raise LoadmasterError(f"{text}; give one for each job")
    keyed = list(zip(jobs, keys or [str(uuid.uuid4()) for _ in jobs], strict=True))
    for start in range(0, len(keyed), MOST_A_CALL):
        part = keyed[start : start + MOST_A_CALL]
        yield {"jobs": [{"job": dict(job), "idempotency_key": key} for job, key in part]}


def outcomes(answer: Any) -> list[Submission | ApiError]:
    """Results of a call's jobs, in its order."""
    return [_outcome(as_object(row)) for row in as_list(as_object(answer).get("results"))]


def _outcome(row: Mapping[str, Any]) -> Submission | ApiError:
    if row.get("job"):
        job = as_object(row["job"])
        return Submission(
            read(Job, job), tuple(job.get("warnings", ())), created=bool(row.get("created"))
        )
    error = as_object(row.get("error"))
    status, kind = _REFUSALS.get(str(error.get("code")), (400, ApiError))
    return kind(status, str(error.get("code")), str(error.get("detail")), error.get("fields"))
