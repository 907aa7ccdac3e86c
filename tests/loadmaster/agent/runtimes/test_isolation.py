"""The cases of isolation with a real bubblewrap, as root and as an ordinary user."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.root

CASES = sorted(Path(__file__).with_name("isolation_cases").glob("*_of_jobs.py"))
"""Not collected by name: they run as two users, here alone."""

REACHABLE = """
set -e
mount --bind "$blocked" "$aside"
mount -t tmpfs -o mode=755 none "$blocked"
mkdir -p "$python"
mount --bind "$aside/${python#"$blocked"/}" "$python"
exec "$@"
"""
"""Program that lets all users reach a Python below a private folder, in its own mounts alone."""


def reachable(command: list[str], aside: str) -> tuple[list[str], dict[str, str]]:
    """The command, and variables, by which every user finds this Python."""
    python = Path(sys.base_prefix)
    blocked = [path for path in python.parents if not path.stat().st_mode & 0o001]
    if not blocked:
        return command, {}
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", REACHABLE, "sh"]
    return [*words, *command], {"blocked": str(blocked[-1]), "python": str(python), "aside": aside}


@pytest.mark.parametrize("user", [0, 12345], ids=["root", "ordinary user"])
def test_jobs_are_isolated_by_an_agent_that_runs_as(user: int, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, user, user)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "--tb=short",
            "-p",
            "no:cacheprovider",
        ]
        command += ["--basetemp", f"{home}/base", *map(str, CASES)]
        if user:
            command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]
        command, variables = reachable(command, str(tmp_path))
        own = {"HOME": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, text=True, capture_output=True, env={**os.environ, **own, **variables}
        )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
