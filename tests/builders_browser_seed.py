"""Fill the browser tests' database, or with `--do` run some lines in it."""

from __future__ import annotations

import sys

import django


def seed() -> None:
    """A busy cluster; prints the names of what it has made."""
    from django.core.management import call_command

    from tests.builders_costs import a_days_energy
    from tests.builders_pages import a_busy_cluster

    call_command("migrate", verbosity=0)
    demo = a_busy_cluster()
    a_days_energy()
    ids = {"running": demo.running.pk, "waiting": demo.waiting.pk, "round": demo.round.pk, "cluster": demo.cluster.pk}
    for name, value in ids.items():
        print(f"{name}={value}")  # that is how the fixture learns them


if __name__ == "__main__":
    django.setup()
    if sys.argv[1:2] == ["--do"]:
        exec(sys.argv[2])  # a test's own lines
    else:
        seed()
