"""Bodies of REST requests: bounded JSON, and serializers that refuse unknown fields."""

from collections.abc import Collection, Mapping
from typing import IO, Any, cast

from django.conf import settings
from rest_framework import serializers
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from controlplane.web.bounded_data import HALF_CHARACTER, half_characters, read_json
from controlplane.web.rest.errors import TooLargeError

NUMBER_FIELDS = (serializers.IntegerField, serializers.FloatField, serializers.DecimalField)
HALF_A_CHARACTER = "holds half a character (a lone surrogate); write whole Unicode characters"
"""Message to a field with such a text."""


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
        if HALF_CHARACTER.search(body):  # or the beginning of a pair, which is whole
            for path in half_characters(data):
                raise serializers.ValidationError({path or "request": [HALF_A_CHARACTER]})
        return cast("dict[str, Any]", data)


def _length(header: object) -> int:
    """Return the bytes that Content-Length declares; 0 if it is missing or no number."""
    try:
        return int(str(header))
    except ValueError:
        return 0


def check_names(data: object, known: Collection[str], before: str = "") -> None:
    """Raise ValidationError for unknown names of an object; `before`: path to the object."""
    if not isinstance(data, dict):
        return
    unknown = sorted(set(data) - set(known))
    if unknown:
        problem = f"cannot be set; what can be: {', '.join(known)}"
        raise serializers.ValidationError({f"{before}{name}": [problem] for name in unknown})


class OnlySettable(serializers.BaseSerializer[Any]):
    """Serializer mixin that refuses unknown or read-only fields, and values of another JSON type.

    Django REST framework would drop such fields, and take 5 for the text "5" and true for 1.
    """

    def to_internal_value(self, data: Any) -> Any:
        """Check names and types, then validate the values. Raises ValidationError."""
        fields: dict[str, Any] = getattr(self, "fields", {})
        settable = {name: field for name, field in fields.items() if not field.read_only}
        check_names(data, settable)
        problems = {}
        for name, field in settable.items():
            value = data.get(name) if isinstance(data, dict) else None
            is_number = isinstance(value, int | float)  # true and false are ints, too
            if isinstance(field, serializers.CharField) and is_number:
                problems[name] = ["must be text, in quotes"]
            elif isinstance(field, NUMBER_FIELDS) and isinstance(value, bool):
                problems[name] = ["must be a number, not true or false"]
        if problems:
            raise serializers.ValidationError(problems)
        return super().to_internal_value(data)
