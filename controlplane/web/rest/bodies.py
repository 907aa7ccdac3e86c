"""Bodies of REST requests: bounded JSON, and serializers that refuse unknown fields."""

from collections.abc import Mapping
from typing import IO, Any, cast

from django.conf import settings
from rest_framework import serializers
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from controlplane.web.bounded_data import HALF_CHARACTER, half_characters, read_json
from controlplane.web.rest.errors import TooLargeError


class BoundedJSONParser(JSONParser):
    """DRF's JSON parser, bounded: 413 above DATA_UPLOAD_MAX_MEMORY_SIZE, unread."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        limit = int(settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
        meta = parser_context["request"].META if parser_context else {}
        if _length(meta.get("CONTENT_LENGTH")) > limit:
            raise TooLargeError(f"the body is larger than {limit} bytes")
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise TooLargeError(f"the body is larger than {limit} bytes")
        try:
            data = read_json(body)
        except ValueError as error:
            raise ParseError(f"the body cannot be read as JSON: {error}") from None
        path = next(half_characters(data), None) if HALF_CHARACTER.search(body) else None
        if path is not None:
            said = "holds half a character (a lone surrogate); write whole Unicode characters"
            raise serializers.ValidationError({path or "request": [said]})
        return cast("dict[str, Any]", data)


def _length(header: object) -> int:
    try:
        return int(str(header))
    except ValueError:
        return 0


class OnlySettable(serializers.BaseSerializer[Any]):
    """Serializer mixin: refuses unknown or read-only fields instead of dropping them."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict):
            fields: dict[str, Any] = getattr(self, "fields", {})
            settable = [n for n, f in fields.items() if not f.read_only]
            text = f"cannot be set; what can be: {', '.join(settable)}"
            unknown = {str(n): text for n in data if n not in settable}
            if unknown:
                raise serializers.ValidationError(unknown)
        return super().to_internal_value(data)
