"""Pages warn operators, and nobody else, of a disk of the server that fills up."""

from typing import Any

import pytest
from django.test import Client

from tests.builders import a_user

pytestmark = pytest.mark.django_db
ALL_THERE_IS = 1e9


@pytest.mark.parametrize(
    ("operator", "least_gb", "warns"),
    [(True, ALL_THERE_IS, True), (True, 0.0, False), (False, ALL_THERE_IS, False)],
)
def test_operators_are_warned_of_little_room(
    client: Client, settings: Any, *, operator: bool, least_gb: float, warns: bool
) -> None:
    settings.SERVER_LEAST_FREE_GB = least_gb
    client.force_login(a_user("ada", operator=operator))
    page = client.get("/").content.decode()
    assert ("GB free" in page) is warns
