"""People and teams from the command line: made, changed, let in and not let in."""

import re
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from knox.models import AuthToken

from controlplane.accounting.costs import sees_all_costs
from controlplane.web.operators import is_operator
from jobs.models import Membership, Team, TeamRole
from jobs.people import remove_member, set_role
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
    assert "1 API tokens have ended; the account is disabled" in told(
        "set_person", "ada", "--disable"
    )
    ada.refresh_from_db()
    assert not ada.is_active
    assert not AuthToken.objects.exists()
    told("set_person", "ada")
    ada.refresh_from_db()
    assert ada.is_active


def test_who_is_disabled_stays_so_while_only_their_rights_change() -> None:
    ada = a_user("ada", team=a_team("vision"))
    a_team("speech")
    told("set_person", "ada", "--disable")
    for options in (
        ("--leave", "vision"), ("--team", "speech", "--role", "viewer"), ("--team", "vision"),
        ("--no-operator",), ("--sees-costs",), ("--new-password", "--leave", "speech"),
    ):  # fmt: skip
        said = told("set_person", "ada", *options)
        assert said.endswith("; still disabled, until `set_person ada` without options\n"), options
        ada.refresh_from_db()
        assert not ada.is_active, options
    assert "one-time password" in told("set_person", "ada", "--new-password")
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


def test_a_role_is_given_kept_changed_and_taken_away() -> None:
    team = a_team("vision")

    def role() -> str | None:
        rows = Membership.objects.filter(team=team, user__username="ada")
        return rows.values_list("role", flat=True).first()

    told("set_person", "ada", "--team", "vision")
    assert role() == "member"
    told("set_person", "ada", "--team", "vision", "--role", "maintainer")
    told("set_person", "ada", "--team", "vision")
    assert role() == "maintainer"
    told("set_person", "ada", "--leave", "vision")
    assert role() is None
    with pytest.raises(CommandError, match="ada is not in team vision"):
        told("set_person", "ada", "--leave", "vision")
    with pytest.raises(CommandError, match="name the team"):
        told("set_person", "ada", "--role", "viewer")


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


LIMITS = (
    "limits: max_tardiness_weight 1, max_priority 10, max_weight 10, max_queued_jobs none,"
    " max_gpus none, max_submissions_per_minute none\n"
)


def test_a_team_is_made_and_its_weight_changed() -> None:
    assert told("set_team", "vision") == f"team vision, weight 1: nobody yet\n{LIMITS}"
    a_user("ada", team=Team.objects.get())
    assert (
        told("set_team", "vision", "--weight", "2")
        == f"team vision, weight 2: ada (member)\n{LIMITS}"
    )
    assert (
        told("set_team", "vision", "--order", "fifo")
        == f"team vision, weight 2, first in, first out: ada (member)\n{LIMITS}"
    )
    for wrong in (
        ("no team",),
        ("vision", "--weight", "0"),
        ("vision", "--weight", "nan"),
        ("vision", "--order", "lifo"),
        ("vision", "--max-gpus", "many"),
        ("vision", "--max-gpus", "-1"),
        ("vision", "--max-priority", "none"),
        ("vision", "--max-weight", "0.5"),
        ("vision", "--max-tardiness-weight", "nan"),
    ):
        with pytest.raises(CommandError):
            told("set_team", *wrong)


def test_limits_of_a_team_are_set_taken_away_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    a_team("vision")
    with caplog.at_level("INFO"):
        set_ = told("set_team", "vision", "--max-gpus", "8", "--max-priority", "3")
    assert "max_priority 3, " in set_
    assert "max_gpus 8, " in set_
    said = "team vision changed: max_priority from 10 to 3; max_gpus from None to 8"
    assert said in caplog.messages
    assert told("set_team", "vision").endswith(set_.partition("\n")[2])
    assert "max_gpus none" in told("set_team", "vision", "--max-gpus", "none")


def test_the_role_of_one_member_is_not_anothers() -> None:
    team = a_team()
    first, second = (a_user(name, team=team) for name in ("ada", "bob"))
    set_role(team, second, TeamRole.MAINTAINER)
    roles = Membership.objects.filter(team=team).values_list("user__username", "role")
    assert dict(roles) == {"ada": "member", "bob": "maintainer"}
    assert remove_member(team, second)
    assert Membership.objects.get(team=team).user == first
