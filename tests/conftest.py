"""What every test shares."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from django.core.cache import cache
from hypothesis import is_hypothesis_test, settings

EXAMPLES = int(os.environ.get("LOADMASTER_TEST_EXAMPLES", "1"))
"""Every property test draws this many times its examples; make test-nightly sets 10."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Multiply the examples of property tests."""
    if EXAMPLES == 1:
        return
    for test in {getattr(item, "obj", None) for item in items}:
        if is_hypothesis_test(test):
            # Hypothesis has no public way: a test's own settings win over every profile.
            of: settings = test._hypothesis_internal_use_settings
            more = settings(of, max_examples=EXAMPLES * of.max_examples)
            test._hypothesis_internal_use_settings = more


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    """No test sees another one's cache."""
    cache.clear()
    yield
    cache.clear()
