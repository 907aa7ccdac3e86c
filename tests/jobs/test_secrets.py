"""Secrets rest encrypted and come out only for the agent that starts a job."""

from io import StringIO
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command

from jobs.models import Secret
from jobs.secrets import SecretMissing, delete_secret, reveal, reveal_references, set_secret
from jobs.submission.validation import JobInvalid
from tests.builders import a_team

pytestmark = pytest.mark.django_db


def test_a_secret_is_kept_encrypted_and_comes_out_again() -> None:
    secret = set_secret(a_team(), "token", "s3cret-välue")
    stored = bytes(Secret.objects.get(pk=secret.pk).ciphertext)
    assert b"s3cret" not in stored
    assert reveal(Secret.objects.get(pk=secret.pk)) == "s3cret-välue"


def test_setting_a_secret_again_replaces_it() -> None:
    team = a_team()
    set_secret(team, "token", "old")
    set_secret(team, "token", "new")
    assert reveal(Secret.objects.get()) == "new"


@pytest.mark.parametrize("name", ["", "1a", "a b", "a" * 64, "ä/b"])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(JobInvalid, match="name: must begin with a letter"):
        set_secret(a_team(), name, "x")


@pytest.mark.parametrize("value", [None, "", 3, "a\0", "x" * 40_000, "\ud800"])
def test_values_that_are_none_are_refused_without_repeating_them(value: object) -> None:
    with pytest.raises(JobInvalid, match="value: must be"):
        set_secret(a_team(), "token", value)


def test_references_of_an_environment_are_filled_from_the_jobs_own_team() -> None:
    team, other = a_team(), a_team()
    set_secret(team, "token", "ours")
    set_secret(other, "token", "theirs")
    assert reveal_references(team, {"A": "plain", "B": {"secret": "token"}}) == {"B": "ours"}


def test_a_reference_to_a_secret_that_has_gone_names_the_variable() -> None:
    team = a_team("research")
    set_secret(team, "token", "x")
    assert delete_secret(team, "token")
    assert not delete_secret(team, "token")
    with pytest.raises(SecretMissing, match="B: team research has no secret token"):
        reveal_references(team, {"B": {"secret": "token"}})


def test_a_secret_of_another_key_cannot_be_opened_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOADMASTER_SECRETS_KEY", Fernet.generate_key().decode())
    secret = set_secret(a_team(), "token", "x")
    monkeypatch.setenv("LOADMASTER_SECRETS_KEY", Fernet.generate_key().decode())
    with pytest.raises(SecretMissing, match="set it again"):
        reveal(secret)


def test_a_key_of_the_environment_must_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_SECRETS_KEY", "short")
    with pytest.raises(ImproperlyConfigured, match="LOADMASTER_SECRETS_KEY"):
        set_secret(a_team(), "token", "x")


def test_what_was_encrypted_before_a_key_was_set_still_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = set_secret(a_team(), "token", "x")
    monkeypatch.setenv("LOADMASTER_SECRETS_KEY", Fernet.generate_key().decode())
    assert reveal(secret) == "x"


def test_a_new_secret_key_loses_nothing_while_the_old_one_is_a_fallback(settings: Any) -> None:
    secret = set_secret(a_team(), "token", "x")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another one", [settings.SECRET_KEY]
    assert reveal(secret) == "x"


def test_rotation_brings_every_secret_to_the_first_key_so_that_the_old_ones_may_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    team, said = a_team(), StringIO()
    set_secret(team, "before", "a")
    monkeypatch.setenv("LOADMASTER_SECRETS_KEY", old)
    set_secret(team, "older", "b")
    monkeypatch.setenv("LOADMASTER_SECRETS_KEY", f"{new},{old}")
    call_command("rotate_secrets", stdout=said)
    assert "2 secrets" in said.getvalue()
    values = {s.name: Fernet(new).decrypt(bytes(s.ciphertext)) for s in Secret.objects.all()}
    assert values == {"before": b"a", "older": b"b"}


def test_rotation_leaves_what_no_key_opens_and_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_SECRETS_KEY", Fernet.generate_key().decode())
    before = bytes(set_secret(a_team("research"), "token", "x").ciphertext)
    monkeypatch.setenv("LOADMASTER_SECRETS_KEY", Fernet.generate_key().decode())
    with pytest.raises(CommandError, match="no key opens research/token"):
        call_command("rotate_secrets", stdout=StringIO())
    assert bytes(Secret.objects.get().ciphertext) == before


def test_a_team_does_not_delete_a_secret_of_another() -> None:
    secret = set_secret(a_team("theirs"), "key", "hunter2")
    assert not delete_secret(a_team("ours"), "key")
    assert reveal(secret) == "hunter2"


def test_a_secret_is_replaced_and_deleted_by_its_name_alone() -> None:
    team = a_team()
    for name in ("first", "second", "third"):
        set_secret(team, name, name)
    set_secret(team, "second", "changed")
    assert delete_secret(team, "third")
    values = {secret.name: reveal(secret) for secret in Secret.objects.all()}
    assert values == {"first": "first", "second": "changed"}
