"""Load of a whole server that is started here: `python -m experiments.load`.

Without --inside it makes the surroundings (an empty home, for PostgreSQL a server of its own by
tests/with-postgres) and runs itself in them, once for each database.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import django

SETTINGS = "controlplane.settings"
ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = (
    "bursts",
    "batch",
    "starts",
    "pages",
    "submissions",
    "overload",
    "flood",
    "bulk",
    "arrays",
    "rounds",
    "heartbeats",
    "history",
)
USUAL = SCENARIOS[:-1]
"""All but the one that writes a million jobs first."""


def main() -> int:
    """Run what the command line asks for; the exit code is that of the worst run."""
    wanted = _arguments().parse_args()
    if wanted.inside:
        django.setup()
        from experiments.load.run import run  # needs the surroundings, and models the applications

        return run(wanted)
    databases = ("sqlite", "postgres") if wanted.database == "both" else (wanted.database,)
    return max(_surrounded(database) for database in databases)


def _surrounded(database: str) -> int:
    with tempfile.TemporaryDirectory(prefix="loadmaster-load-") as home:
        own = {
            "LOADMASTER_HOME": home,
            "SECRET_KEY": "load" * 16,
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "LOADMASTER_LOG_LEVEL": "WARNING",
            "POSTGRES_SYNC": "on",
            "WEB_CONCURRENCY": os.environ.get("WEB_CONCURRENCY")
            or "2",  # as deploy/entrypoint has it
        }
        env = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")} | own
        command = [
            sys.executable,
            "-m",
            "experiments.load",
            *sys.argv[1:],
            "--database",
            database,
            "--inside",
        ]
        wrapper = [str(ROOT / "tests" / "with-postgres")] if database == "postgres" else []
        return subprocess.run([*wrapper, *command], cwd=ROOT, env=env, check=False).returncode


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.load",
        description="Load a server on this machine and measure it.",
    )
    parser.add_argument("--database", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument(
        "--agents", type=int, default=10_000, help="simulated agents, a heartbeat every 10 s each"
    )
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs in the database")
    parser.add_argument(
        "--ended", type=int, default=1_000_000, help="ended jobs in the scenario history"
    )
    parser.add_argument("--nodes", type=int, default=1_000, help="nodes in the database")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each scenario that lasts")
    parser.add_argument(
        "--overload",
        type=float,
        default=150.0,
        help="submissions offered a second in the scenario of that name",
    )
    parser.add_argument("--rate", type=float, default=365.0, help="jobs/s offered in bulk")
    parser.add_argument("--single-rate", type=float, default=90.0, help="single jobs/s offered")
    parser.add_argument("--reads", type=int, default=20, help="of each page")
    parser.add_argument(
        "--starts", type=int, default=40, help="jobs started one after another on an idle cluster"
    )
    parser.add_argument("--burst", type=int, default=200, help="short jobs submitted at once")
    parser.add_argument("--batch", type=int, default=200, help="batch jobs submitted at once")
    parser.add_argument("--array", type=int, default=900, help="elements of an array")
    parser.add_argument(
        "--large-array", type=int, default=10_000, help="elements of an array in scenario arrays"
    )
    parser.add_argument("--scenarios", default=",".join(USUAL), help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--output", type=Path, help="append the JSON lines to this file")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
