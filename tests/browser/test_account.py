"""The pages of one's account in a real browser: tokens, and the first login."""

import pytest
from playwright.sync_api import expect

from tests.builders_browser import Visitor

pytestmark = pytest.mark.browser
MAKE = """
from datetime import timedelta
from django.contrib.auth.models import User
from knox.models import AuthToken
from controlplane.web.credentials.tokens import issue, note_use
from controlplane.web.models import Scope
ada = User.objects.get(username="ada")
AuthToken.objects.filter(user=ada).delete()
for scope, days in ((Scope.READ, 30), (Scope.SUBMIT, 90), (Scope.OPERATE, 1)):
    row = issue(ada, scope, timedelta(days=days)).row
    if scope != Scope.SUBMIT:
        note_use(row)
print(row.token_key)
"""
ONCE = """
from jobs.people import save_person
from django.contrib.auth.models import User
User.objects.filter(username="newcomer").delete()
print(save_person("newcomer"))
"""


def test_tokens_are_listed_and_revoked(ada: Visitor) -> None:
    key = ada.server.do(MAKE).strip()
    page = ada.open("/tokens/", "API tokens")
    expect(page.get_by_role("row")).to_have_count(4)
    ada.picture("tokens")
    page.get_by_role("button", name=f"Revoke {key}").click()
    page.get_by_role("button", name="Revoke it").click()
    expect(page.get_by_text(f"The token {key} has ended.")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(3)
    assert ada.complaints == []


def test_tokens_fit_a_phone(ada_on_a_phone: Visitor) -> None:
    ada_on_a_phone.server.do(MAKE)
    ada_on_a_phone.open("/tokens/", "API tokens")
    ada_on_a_phone.picture("phone-tokens")
    assert ada_on_a_phone.overflow_px() == 0


def test_tokens_are_dark_at_night(ada_at_night: Visitor) -> None:
    ada_at_night.server.do(MAKE)
    ada_at_night.open("/tokens/", "API tokens")
    ada_at_night.picture("tokens-dark")


def test_who_has_no_tokens_is_told_how_to_make_one(grace: Visitor) -> None:
    grace.open("/tokens/", "API tokens")
    expect(grace.page.get_by_text("loadmaster login --scope read")).to_be_visible()
    grace.picture("tokens-none")


def test_the_first_login_chooses_a_password(stranger: Visitor) -> None:
    password = stranger.server.do(ONCE).strip()
    page = stranger.page
    page.goto(f"{stranger.server.url}/login/")
    page.get_by_label("Name").fill("newcomer")
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("was given to you for one login")).to_be_visible()
    stranger.picture("first-login")
    page.get_by_label("Old password").fill(password)
    for label in ("New password", "New password confirmation"):
        page.get_by_label(label, exact=True).fill("quite another one")
    page.get_by_role("button", name="Change it").click()
    expect(page.get_by_role("heading", name="Queue")).to_be_visible()
