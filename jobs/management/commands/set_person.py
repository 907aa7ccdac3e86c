"""manage.py set_person NAME [--team T] [--role R] [--operator]: create or change a person."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError

from clusters.management.operators import OperatorCommand
from jobs.models import TeamRole
from jobs.people import (
    disable_person,
    end_tokens_of,
    remove_member,
    reset_password,
    save_person,
    teams_by_name,
)


class Command(OperatorCommand):
    help = "Make a person, or change what they may; a new person's password is printed once"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("name")
        add("--team", action="append", default=[], help="add them to this team; may be repeated")
        add("--role", choices=TeamRole.values, help="their role in these teams (default: member)")
        add(
            "--leave",
            action="append",
            default=[],
            help="remove them from this team; may be repeated",
        )
        staff = parser.add_mutually_exclusive_group()
        staff.add_argument(
            "--operator",
            action="store_true",
            default=None,
            help="make them an operator, who may do and see everything",
        )
        staff.add_argument(
            "--no-operator",
            dest="operator",
            action="store_false",
            help="make them an ordinary user again",
        )
        add("--sees-costs", action="store_true", help="let them see every team's energy and cost")
        add(
            "--disable",
            action="store_true",
            help="disable the account and end its API tokens; NAME alone enables it again",
        )
        add("--end-tokens", action="store_true", help="end their API tokens; they log in again")
        add(
            "--new-password",
            action="store_true",
            help="print a new one-time password; alone it also enables the account",
        )

    def handle(
        self,
        *args: Any,
        name: str,
        team: list[str],
        leave: list[str],
        disable: bool,
        end_tokens: bool,
        **options: Any,
    ) -> None:
        # 1. --disable and --end-tokens change nothing else.
        if disable:
            ended = disable_person(_get_user(name))
            self.stdout.write(f"{name}: {ended} API tokens have ended; the account is disabled")
            return
        if end_tokens:
            ended = end_tokens_of(_get_user(name))
            self.stdout.write(f"{name}: {ended} API tokens have ended")
            return

        # 2. Refuse what cannot be done, before anything is changed.
        if options["new_password"]:
            _get_user(name)
        if options["role"] and not team:
            raise CommandError("--role: name the team by --team")

        # 3. Take them out of teams.
        for team_to_leave in teams_by_name(leave):
            if not remove_member(team_to_leave, _get_user(name)):
                raise CommandError(f"--leave: {name} is not in team {team_to_leave}")

        # 4. Create or change them. A name without rights or teams enables a disabled person.
        operator = options["operator"]
        sees_costs = options["sees_costs"]
        changes_rights = bool(team or leave or sees_costs or operator is not None)
        password = save_person(
            name,
            teams=teams_by_name(team),
            role=options["role"],
            operator=operator,
            sees_costs=sees_costs,
            enable=not changes_rights,
        )
        if options["new_password"]:
            password = reset_password(_get_user(name))

        # 5. Show the result. A password is shown this once.
        outcome = "changed"
        if password:
            outcome = (
                f"log in with the one-time password {password} (shown only now, and changed at the"
                " first login)"
            )
        if not _get_user(name).is_active:
            outcome += f"; still disabled, until `set_person {name}` without options"
        self.stdout.write(f"{name}: {outcome}")


def _get_user(name: str) -> User:
    """Return the user of this name. Raises CommandError if there is none."""
    user = User.objects.filter(username=name).first()
    if user is None:
        raise CommandError(f"there is nobody called {name!r}")
    return user
