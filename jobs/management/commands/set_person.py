"""manage.py set_person NAME [--team T] [--role R] [--operator]: create, change, or disable."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError

from clusters.management.operators import OperatorCommand
from jobs.models import TeamRole
from jobs.people import (
    password_reset,
    person_disabled,
    person_saved,
    role_taken,
    teams_named,
    tokens_ended,
)  # fmt: skip


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
        if disable or end_tokens:
            user = _known(name)
            ended = person_disabled(user) if disable else tokens_ended(user)
            gone = "; the account is disabled" if disable else ""
            self.stdout.write(f"{name}: {ended} API tokens have ended{gone}")
            return
        known = _known(name) if options["new_password"] else None
        if options["role"] and not team:
            raise CommandError("--role: name the team by --team")
        for left in teams_named(leave):
            if not role_taken(left, _known(name)):
                raise CommandError(f"--leave: {name} is not in team {left}")
        operator, sees_costs = options["operator"], options["sees_costs"]
        password = person_saved(
            name, teams=teams_named(team), role=options["role"], operator=operator,
            sees_costs=sees_costs,
            enable=not (team or leave or sees_costs or operator is not None),
        )  # fmt: skip
        password = password_reset(known) if known else password
        words = (
            f"log in with the one-time password {password} (shown only now, and changed at the"
            " first login)"
        )
        still = f"; still disabled, until `set_person {name}` without options"
        said = words if password else "changed"
        self.stdout.write(f"{name}: {said}{'' if _known(name).is_active else still}")


def _known(name: str) -> User:
    user = User.objects.filter(username=name).first()
    if user is None:
        raise CommandError(f"there is nobody called {name!r}")
    return user
