"""manage.py rotate_secrets: encrypt all secrets with the first key, so that old keys can go."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from jobs.secrets import rotate


class Command(BaseCommand):
    help = (
        "Encrypt every team's secret with the first key of LOADMASTER_SECRETS_KEY (else with the"
        " one made from SECRET_KEY)"
    )

    def handle(self, *args: Any, **options: Any) -> None:
        rotated, closed = rotate()
        self.stdout.write(f"{rotated} secrets are encrypted with the first key")
        if closed:
            names = ", ".join(str(secret) for secret in closed)
            raise CommandError(
                f"no key opens {names}: add their key to LOADMASTER_SECRETS_KEY, or set them again"
            )
