"""Fill the browser tests' database, or with `--do` run some lines in it."""

import sys

import django


def seed() -> None:
    """A busy cluster; prints the names of what it has made."""
    from django.core.management import call_command

    from tests.builders_costs import a_days_energy
    from tests.builders_pages import a_busy_cluster
    from tests.builders_studies import a_simulation, a_simulation_that_ran

    call_command("migrate", verbosity=0)
    demo = a_busy_cluster()
    a_days_energy()
    study = {
        "team": demo.team.name,
        "policies": [{"name": "fifo"}, {"name": "randomized_greedy"}],
        "seeds": [1, 2],
    }
    simulated = a_simulation_that_ran(
        demo.user, study={**study, "name": "FIFO against the optimiser"}
    )
    a_simulation(
        demo.user,
        study={**study, "name": "half way"},
        state="running",
        progress=0.4,
        left_s=95.0,
        message="2 of 5 runs done",
    )
    a_simulation(
        demo.user,
        study={**study, "name": "broken"},
        state="failed",
        message="workload: line 3: run_s must be a number",
    )
    ids = {
        "running": demo.running.pk,
        "waiting": demo.waiting.pk,
        "round": demo.round.pk,
        "cluster": demo.cluster.pk,
    }
    ids["simulation"] = simulated.pk
    for name, value in ids.items():
        print(f"{name}={value}")  # that is how the fixture learns them


if __name__ == "__main__":
    django.setup()
    if sys.argv[1:2] == ["--do"]:
        exec(sys.argv[2])  # a test's own lines
    else:
        seed()
