"""Builders for tests of the command line."""

import json
from pathlib import Path
from typing import Any

import yaml
from django.contrib.auth.models import User
from typer.testing import CliRunner, Result

from clusters.models import Node
from jobs.models import Job
from loadmaster.cli.main import app
from tests.builders import a_job
from tests.builders_jobs import job_fields


def run(*arguments: object, stdin: str | None = None) -> Result:
    """The command's end and what it printed."""
    return CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)


def answer(*arguments: object) -> Any:
    """The command's answer as JSON; it must not fail."""
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def job_file(folder: Path, **fields: Any) -> Path:
    """A file of a job with these fields."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job_fields(**fields)))
    return path


def of(user: User, node: Node, **values: Any) -> Job:
    """A job of the user's only team on the node's cluster."""
    return a_job(node.cluster, team=user.teams.get(), user=user, **values)
