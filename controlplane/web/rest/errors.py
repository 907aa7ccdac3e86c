"""Form of REST errors: {"error": {"code", "detail", "fields"?}}."""

from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import status
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.response import Response
from rest_framework.views import exception_handler as drf_exception_handler


class ConflictError(APIException):
    """Refusal of a call that the present state of its object does not allow."""

    status_code = status.HTTP_409_CONFLICT
    default_code = "conflict"


class TooManyError(APIException):
    """Refusal of a call that is made too often: 429 with Retry-After."""

    status_code = status.HTTP_429_TOO_MANY_REQUESTS
    default_code = "throttled"

    def __init__(self, detail: str, wait: int) -> None:
        """Set the message; `wait`: seconds after which another try is worth it."""
        super().__init__(detail)
        self.wait = wait


class NoAnswerError(APIException):
    """End of the nice process before its answer: 503 with Retry-After, as another one starts."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_code = "no_answer"
    wait = 1


class TooLargeError(APIException):
    """Refusal of a body that is larger than any request needs."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"


def error_body(
    code: str, detail: str, fields: dict[str, list[str]] | None = None
) -> dict[str, Any]:
    """Return the body of an error; `fields`: messages by field."""
    error: dict[str, Any] = {"code": code, "detail": detail}
    if fields:
        error["fields"] = fields
    return {"error": error}


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """Return DRF's answer to an error in our form; None for errors that DRF does not know."""
    response = drf_exception_handler(error, context)
    if response is None:
        return None
    if isinstance(error, ValidationError):
        fields = _by_field(response.data)
        problems = []
        for name, messages in fields.items():
            problems += [f"{name}: {message}" for message in messages]
        response.data = error_body("invalid", "; ".join(problems), fields)
    elif isinstance(error, APIException):
        code = error.get_codes()
        if not isinstance(code, str):
            code = error.default_code
        response.data = error_body(code, _encodable(error.detail))
    elif isinstance(error, Http404):
        detail = str(error) or "there is no such thing, or you may not see it"
        response.data = error_body("not_found", detail)
    else:
        response.data = error_body("forbidden", str(error) or "you may not do this")
    return response


@csrf_exempt
@login_not_required
def not_found_api(request: HttpRequest) -> JsonResponse:
    """Return 404 for an unknown address under /api/."""
    return JsonResponse(error_body("not_found", f"there is nothing at {request.path}"), status=404)


def _by_field(data: object) -> dict[str, list[str]]:
    """Return the messages of a validation by field; "request" has those of no field."""
    if isinstance(data, dict):
        return {_encodable(name): _messages(value) for name, value in data.items()}
    return {"request": _messages(data)}


def _messages(value: object) -> list[str]:
    """Return all messages of a field, those of inner fields with their names."""
    messages: list[str] = []
    if isinstance(value, dict):
        for name, inner in value.items():
            messages += [f"{name}: {message}" for message in _messages(inner)]
    elif isinstance(value, list):
        for inner in value:
            messages += _messages(inner)
    else:
        messages.append(_encodable(value))
    return messages


def _encodable(text: object) -> str:
    """Return a text with escaped lone surrogates, which UTF-8 does not have."""
    return str(text).encode("utf-8", "backslashreplace").decode()
