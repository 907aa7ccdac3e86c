"""Passwords that are guessed soon are refused wherever one is set."""

import secrets
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import Client
from rest_framework.test import APIClient

from jobs.people import save_person
from tests.builders import a_cluster, a_node, a_team, a_user

pytestmark = pytest.mark.django_db
GOOD = "violet harbour trombone"
GUESSABLE = [
    "alicealice", "alice12345", "ecila54321", "Alice.Alice", "4l1c34l1c3", "loadmaster1",
    "L0adm4ster!!", "Loadmaster2026!", "Password2026", "P@ssw0rd123", "summer2026", "adminadmin",
    "letmein12345", "qwertyuiop", "1q2w3e4r5t", "0123456789", "aaaaaaaaaaaaaaa", "01.01.1990",
    "carroll2026", "alice.carroll", "wonderland1", "robotics2026", "gpu.lab.example",
]  # fmt: skip


@pytest.fixture(name="alice")
def _alice() -> User:
    a_node(a_cluster(name="lab"))
    user = a_user("alice", team=a_team("robotics"))
    user.first_name = "Alice"
    user.last_name = "Carroll"
    user.email = "a.carroll@wonderland.example"
    user.set_password(GOOD)
    user.save()
    return user


def by_page(user: User, new: str) -> str:
    client = Client()
    client.force_login(user)
    fields = {"old_password": GOOD, "new_password1": new, "new_password2": new}
    return str(client.post("/password/", fields).text)


def by_rest(user: User, new: str) -> str:
    body = {"username": user.username, "password": GOOD, "new_password": new}
    return str(APIClient().post("/api/v1/tokens/", body, format="json").text)


def by_administration(user: User, new: str) -> str:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password=GOOD))
    fields = {"password1": new, "password2": new, "usable_password": "true"}
    return str(client.post(f"/admin/auth/user/{user.pk}/password/", fields).text)


WAYS = [by_page, by_rest, by_administration]


@pytest.mark.parametrize("password", GUESSABLE)
def test_guessable_password_is_refused(alice: User, password: str, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["gpu.lab.example"]
    with pytest.raises(ValidationError, match="easy to guess"):
        validate_password(password, alice)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_refuses_a_guessable_password(
    alice: User, way: Callable[[User, str], str]
) -> None:
    assert "easy to guess" in way(alice, "alice12345")
    alice.refresh_from_db()
    assert alice.check_password(GOOD)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_takes_four_unrelated_words(alice: User, way: Callable[[User, str], str]) -> None:
    way(alice, "copper lantern bicycle moss")
    alice.refresh_from_db()
    assert alice.check_password("copper lantern bicycle moss")


def test_new_person_in_the_administration_needs_a_good_password(alice: User) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password=GOOD))
    fields = {"username": "barbara", "usable_password": "true"}
    weak = {**fields, "password1": "barbara2026", "password2": "barbara2026"}
    assert "easy to guess" in client.post("/admin/auth/user/add/", weak).text
    good = {**fields, "password1": GOOD, "password2": GOOD}
    assert client.post("/admin/auth/user/add/", good).status_code == 302


def test_first_operator_may_not_take_name_from_variables(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_SUPERUSER_USERNAME", "gwendolyn")
    monkeypatch.setenv("DJANGO_SUPERUSER_EMAIL", "")
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "gwendolyn99")
    with pytest.raises(CommandError, match="easy to guess"):
        call_command("createsuperuser", "--noinput")


def test_changepassword_refuses_a_guessable_password(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getpass", lambda *_, **__: "alicealice")
    with pytest.raises(CommandError, match="Aborting"):
        call_command("changepassword", "alice")


def test_generated_passwords_pass_the_validators(alice: User) -> None:
    one_time = save_person("grace")
    assert one_time is not None
    validate_password(one_time, User.objects.get(username="grace"))
    for _ in range(30):
        validate_password(secrets.token_urlsafe(12), alice)


def test_very_long_password_is_judged_by_its_beginning(alice: User) -> None:
    validate_password("copper lantern bicycle moss " * 10_000, alice)
    with pytest.raises(ValidationError, match="easy to guess"):
        validate_password("alice" * 10_000, alice)
