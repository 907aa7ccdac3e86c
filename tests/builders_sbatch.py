"""Builders of submissions of scripts for Slurm, and of their answers."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from jobs.submission.validation import JobInvalid, JobRequest, validate_job


def sbatch(*lines: str, **parts: Any) -> dict[str, Any]:
    """A job's data with a script of these `#SBATCH` lines."""
    text = "\n".join(["#!/bin/sh", *(f"#SBATCH {line}" for line in lines), "true", ""])
    return {"sbatch": {"script": text, "name": "run.sh", "folder": "/home/ada", **parts}}


def taken(user: User, *lines: str, **parts: Any) -> JobRequest:
    return validate_job(user, sbatch(*lines, **parts))


def refused(user: User, *lines: str, **parts: Any) -> dict[str, list[str]]:
    with pytest.raises(JobInvalid) as raised:
        taken(user, *lines, **parts)
    return raised.value.fields
