"""Numbers of jobs, as scripts written for Slurm know them."""

import re
from uuid import UUID

NUMBER_BITS = 60
"""Fits a shell's arithmetic with room for a factor, and differs for all jobs that are kept."""

_BELOW = 128 - NUMBER_BITS
NUMBER = re.compile(r"[0-9]{1,19}")


def job_number(job_id: str | UUID) -> int:
    """Return the number of a job or array: the first 60 bits of its id, always above 0."""
    return (job_id if isinstance(job_id, UUID) else UUID(job_id)).int >> _BELOW


def is_number_of(job_id: str, text: str) -> bool:
    """Return True if the text is the number of this job or array."""
    return text == str(job_number(job_id))


def ids_of(number: str) -> tuple[UUID, UUID] | None:
    """Return the least and the greatest id with this number; None if it is the number of none."""
    if not NUMBER.fullmatch(number) or not 0 < int(number) < 2**NUMBER_BITS:
        return None
    least = int(number) << _BELOW
    return UUID(int=least), UUID(int=least + 2**_BELOW - 1)
