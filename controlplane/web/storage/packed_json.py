"""JSON stored packed: a snapshot of a thousand jobs is a megabyte of repeated names."""

import base64
import json
import zlib
from typing import Any

from django.db import models

PACKED = "zlib+json"
"""The only key of a packed value."""

WORTH_BYTES = 2000
"""Fewest bytes worth packing."""

LEVEL = 6
"""Level of compression by zlib."""


def pack(value: Any) -> Any:
    """Return the value to store: unchanged if short, else {"zlib+json": base64 of packed JSON}."""
    if value is None or isinstance(value, int | float | bool):
        return value
    if isinstance(value, dict) and value.keys() == {PACKED}:
        return value
    text = json.dumps(value, separators=(",", ":")).encode()
    return value if len(text) < WORTH_BYTES else pack_text(text)


def pack_text(text: bytes) -> dict[str, str]:
    """Return a text of JSON packed, however short it is."""
    return {PACKED: base64.b64encode(zlib.compress(text, LEVEL)).decode()}


def unpack(stored: Any) -> Any:
    """Return the value that was stored, packed or not."""
    if isinstance(stored, dict) and len(stored) == 1 and PACKED in stored:
        return json.loads(zlib.decompress(base64.b64decode(stored[PACKED])))
    return stored


class PackedJSONField(models.JSONField):
    """JSONField whose longer values are packed at rest and cannot be searched."""

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        is_expression = hasattr(value, "resolve_expression")
        if value is not None and not is_expression:
            value = pack(value)
        return super().get_db_prep_save(value, connection)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return unpack(super().from_db_value(value, expression, connection))
