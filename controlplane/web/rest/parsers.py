"""Reading the bodies of REST requests: JSON objects of a bounded size."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import IO, Any

from django.conf import settings
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from controlplane.web.rest.errors import TooLargeError


class BoundedJSONParser(JSONParser):
    """DRF's JSON parser with 413 for bodies above DATA_UPLOAD_MAX_MEMORY_SIZE, unread."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The parsed body; TooLargeError, or ParseError for what is no JSON."""
        limit = int(settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
        meta = parser_context["request"].META if parser_context else {}
        if _length(meta.get("CONTENT_LENGTH")) > limit:
            raise TooLargeError(f"the body is larger than {limit} bytes")
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise TooLargeError(f"the body is larger than {limit} bytes")
        try:
            return super().parse(BytesIO(body), media_type, parser_context)
        except RecursionError:
            raise ParseError("the JSON is nested too deeply") from None


def _length(header: object) -> int:
    try:
        return int(str(header))
    except ValueError:
        return 0
