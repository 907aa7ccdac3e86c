"""What the tests of the server share."""

import pytest

from controlplane.web.http import storage_errors


@pytest.fixture(autouse=True)
def _no_failure_remembered() -> None:
    """No test sees a failing database of the last one."""
    storage_errors._last.clear()
