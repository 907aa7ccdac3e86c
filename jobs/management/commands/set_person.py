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
        add("--team", action="append", default=[], help="a team they are in, as often as needed")
        add("--role", choices=TeamRole.values, help="their role in these teams (member)")
        add("--leave", action="append", default=[], help="a team they are taken out of")
        staff = parser.add_mutually_exclusive_group()
        staff.add_argument(
            "--operator", action="store_true", default=None, help="they may do and see everything"
        )
        staff.add_argument(
            "--no-operator", dest="operator", action="store_false", help="not any more"
        )
        add("--sees-costs", action="store_true", help="they see every team's energy and cost")
        add(
            "--disable",
            action="store_true",
            help="nobody logs in as them, until NAME alone or --new-password; their API tokens end",
        )
        add("--end-tokens", action="store_true", help="end their API tokens; they log in again")
        add(
            "--new-password",
            action="store_true",
            help="a new one-time password for them; without other rights it enables them too",
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
            gone = "; nobody logs in as them any more" if disable else ""
            self.stdout.write(f"{name}: {ended} API tokens have ended{gone}")
            return
        known = _known(name) if options["new_password"] else None
        if options["role"] and not team:
            raise CommandError("--role: say in which team, by --team")
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
