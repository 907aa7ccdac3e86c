"""Numbers of jobs and arrays, as scripts written for Slurm know them."""

import re

MOST_NUMBER = 2**26 - 1
"""Greatest number: Slurm's, so that scripts may use it as a seed or add it to a port."""

_NUMBER = re.compile(r"[0-9]{1,8}")


def read_number(text: str) -> int | None:
    """Return the number that a text stands for; None if no job can have it."""
    if not _NUMBER.fullmatch(text) or not 0 < int(text) <= MOST_NUMBER:
        return None
    return int(text)
