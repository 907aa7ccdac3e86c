"""People and teams from the command line: made, changed, let in and not let in."""

import re
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from knox.models import AuthToken

from controlplane.accounting.costs import sees_all_costs
from controlplane.web.operators import is_operator
from jobs.models import Team
from tests.builders import a_team, a_user
from tests.builders_jobs import a_token

pytestmark = pytest.mark.django_db


def told(*arguments: str) -> str:
    output = StringIO()
    call_command(*arguments, stdout=output)
    return output.getvalue()


def test_a_person_is_made_with_a_password_that_works_and_is_shown_once() -> None:
    a_team("vision")
    words = told("set_person", "ada", "--team", "vision", "--operator")
    password = re.search(r"one-time password (\S+)", words)
    ada = User.objects.get(username="ada")
    assert password is not None
    assert ada.check_password(password[1])
    assert is_operator(ada)
    assert not ada.is_superuser
    assert [team.name for team in ada.teams.all()] == ["vision"]
    assert told("set_person", "ada", "--no-operator") == "ada: changed\n"
    assert not is_operator(User.objects.get(username="ada"))


def test_whoever_sees_costs_is_no_operator() -> None:
    told("set_person", "paula", "--sees-costs")
    paula = User.objects.get(username="paula")
    assert sees_all_costs(paula)
    assert not is_operator(paula)


def test_who_is_disabled_gets_in_no_more_until_set_again() -> None:
    ada = a_user("ada", team=a_team("vision"))
    a_token(ada)
    assert "1 API tokens have ended; nobody logs in" in told("set_person", "ada", "--disable")
    ada.refresh_from_db()
    assert not ada.is_active
    assert not AuthToken.objects.exists()
    told("set_person", "ada")
    ada.refresh_from_db()
    assert ada.is_active


def test_ending_tokens_leaves_those_of_others_and_the_password() -> None:
    ada, grace = a_user("ada"), a_user("grace")
    a_token(ada)
    a_token(grace)
    told("set_person", "ada", "--end-tokens")
    ada.refresh_from_db()
    assert ada.is_active
    assert [token.user for token in AuthToken.objects.all()] == [grace]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ada", "--team", "vision"), "there is no team 'vision'"),
        (("a person", "--operator"), "Enter a valid username"),
        (("nobody", "--disable"), "there is nobody called 'nobody'"),
        (("nobody", "--end-tokens"), "there is nobody called 'nobody'"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(CommandError) as refusal:
        told("set_person", *arguments)
    assert words in str(refusal.value)
    assert not User.objects.exists()


def test_a_team_is_made_and_its_weight_changed() -> None:
    assert told("set_team", "vision") == "team vision, weight 1: nobody yet\n"
    a_user("ada", team=Team.objects.get())
    assert told("set_team", "vision", "--weight", "2") == "team vision, weight 2: ada\n"
    assert (
        told("set_team", "vision", "--order", "fifo")
        == "team vision, weight 2, first in, first out: ada\n"
    )
    for wrong in (
        ("no team",),
        ("vision", "--weight", "0"),
        ("vision", "--weight", "nan"),
        ("vision", "--order", "lifo"),
    ):
        with pytest.raises(CommandError):
            told("set_team", *wrong)
