"""Pages of lists: ?limit= and ?offset=, both bounded."""

from __future__ import annotations

from rest_framework.pagination import LimitOffsetPagination
from rest_framework.request import Request

LARGEST_OFFSET = 2**40


class BoundedPagination(LimitOffsetPagination):
    """DRF's limit and offset pages with bounded numbers."""

    max_limit = 1000

    def get_offset(self, request: Request) -> int:
        """Where the page begins."""
        return min(super().get_offset(request), LARGEST_OFFSET)
