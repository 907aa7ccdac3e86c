"""Refusals made of errors that agents' calls raise."""

from __future__ import annotations

import logging

from clusters.agent_calls import AgentCallError
from controlplane.execution.protocol.threads import OverloadedError
from controlplane.web.http.storage_errors import RETRY_AFTER_S, noted_failure
from jobs.moves import LostRaceError
from jobs.moves import LostRaceError as JobLostRaceError

log = logging.getLogger(__name__)


def refusal_of(error: Exception) -> AgentCallError:
    """The answer to a call that raised this; what nobody expected is logged and answered 500."""
    if isinstance(error, AgentCallError):
        return error
    if isinstance(error, OverloadedError):
        return overloaded("too many calls wait; send it again in a moment")
    if isinstance(error, LostRaceError | JobLostRaceError):
        log.info("an agent's call lost a race: %s", error)
        return AgentCallError(
            503, "race", "somebody else changed the same row first; send the request again"
        )
    if (refusal := database_refusal(error)) is not None:
        return refusal
    log.error("an agent's call failed", exc_info=error)
    return AgentCallError(500, "server_error", "the server failed; send the request again later")


def database_refusal(error: Exception) -> AgentCallError | None:
    """The answer to an error that says the database cannot be used; None for any other."""
    failure = noted_failure(error)
    if failure is None:
        return None
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return AgentCallError(failure.status, failure.code, failure.detail, headers=headers)


def overloaded(detail: str) -> AgentCallError:
    """More wait than can be answered in time."""
    return AgentCallError(503, "overloaded", detail)
