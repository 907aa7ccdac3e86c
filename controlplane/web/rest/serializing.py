"""What serializers have in common."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class OnlySettable(serializers.BaseSerializer[Any]):
    """Serializer mixin: refuses unknown or read-only fields instead of dropping them."""

    def to_internal_value(self, data: Any) -> Any:
        """The values; names what cannot be set, and what can."""
        if isinstance(data, dict):
            fields: dict[str, Any] = getattr(self, "fields", {})
            settable = [n for n, f in fields.items() if not f.read_only]
            unknown = {
                str(n): f"cannot be set; what can be: {', '.join(settable)}"
                for n in data
                if n not in settable
            }
            if unknown:
                raise serializers.ValidationError(unknown)
        return super().to_internal_value(data)
