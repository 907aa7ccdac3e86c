"""Fill an empty database: cluster, GPU types, prices, team and admin."""

from typing import Any

from django.core.management.base import BaseCommand

from controlplane.operations.bootstrap import ADMIN, bootstrap


class Command(BaseCommand):
    help = (
        "Make the local cluster, its GPU types and prices, a team and an admin (whose password is"
        " printed once)"
    )

    def handle(self, *args: Any, **options: Any) -> None:
        password = bootstrap()
        if password:
            self.stdout.write(f"admin: {ADMIN} / {password} (shown once)")
        else:
            self.stdout.write("nothing was changed: there is an admin already")
