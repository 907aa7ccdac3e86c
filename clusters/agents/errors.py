"""Refusals of agents' calls: an HTTP status, a code, and a text that names the remedy."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.protocol import ErrorCode


class AgentCallError(Exception):
    """A refused call; `field` names the place in the request, `expected` what would be right."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        field: str = "",
        expected: int | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.field = field
        self.expected = expected
        self.headers = {**_HEADERS.get(status, {}), **(headers or {})}

    def body(self) -> dict[str, dict[str, object]]:
        """The answer's JSON: {"error": {"code", "detail", "field"?, "expected"?}}."""
        error: dict[str, object] = {"code": str(self.code), "detail": self.detail}
        if self.field:
            error["field"] = self.field
        if self.expected is not None:
            error["expected"] = self.expected
        return {"error": error}


_HEADERS: dict[int, dict[str, str]] = {
    401: {"WWW-Authenticate": "Bearer"},
    503: {"Retry-After": "1"},
}


def invalid(field: str, problem: str) -> AgentCallError:
    """The request does not make sense at `field`; `problem` says what would be right."""
    return AgentCallError(400, "invalid", f"{field}: {problem}", field=field)


def bad_token(detail: str) -> AgentCallError:
    """The bearer token opens nothing here."""
    return AgentCallError(401, ErrorCode.TOKEN, detail)


def unknown_token() -> AgentCallError:
    """A node's token that nobody has."""
    return bad_token("this node token is unknown or revoked; enrol the node again")


def not_yours() -> AgentCallError:
    """A node's token on another node's address."""
    return AgentCallError(403, "not_yours", "this token is another node's")


def stale_epoch(epoch: int, current: int) -> AgentCallError:
    """Another session has begun since."""
    return AgentCallError(
        409,
        ErrorCode.STALE_EPOCH,
        f"epoch {epoch} is over, open a new session",
        field="epoch",
        expected=current,
    )


def stale_assignment(detail: str) -> AgentCallError:
    """The assignment has another fence, is over, or is not this node's."""
    return AgentCallError(409, ErrorCode.STALE_ASSIGNMENT, detail)
