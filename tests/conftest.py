"""What every test shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.cache import cache


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    """No test sees another one's cache."""
    cache.clear()
    yield
    cache.clear()
