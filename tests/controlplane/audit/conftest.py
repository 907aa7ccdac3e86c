"""An operator, and a browser of theirs."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.builders import a_user


@pytest.fixture(name="boss")
def _boss() -> User:
    user = a_user("boss", operator=True)
    User.objects.filter(pk=user.pk).update(is_superuser=True)
    return User.objects.get(pk=user.pk)


@pytest.fixture(name="page")
def _page(boss: User, client: Client) -> Client:
    client.force_login(boss)
    return client
