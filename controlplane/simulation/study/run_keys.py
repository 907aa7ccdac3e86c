"""Digests of everything that decides a run's result, to reuse finished runs."""

import json
import re
from collections.abc import Iterable
from functools import cache
from hashlib import file_digest, sha256
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_CODE = (
    "policies", "controlplane/simulation", "controlplane/loop/rounds.py",
    "controlplane/loop/changes.py", "clusters/energy.py", "profiling/speeds.py",
    "profiling/pairs/completion.py", "profiling/pairs/fingerprints.py",
    "profiling/pairs/estimates.py", "profiling/pairs/study.py",
)  # fmt: skip
_LONGEST_PATH = 4096


def digest(value: object) -> str:
    """SHA-256 of plain JSON data, in hexadecimal."""
    return sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def files_in(value: object) -> Iterable[Path]:
    """Files named in plain data; their content enters the digest."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from files_in(inner)
    elif isinstance(value, str) and len(value) < _LONGEST_PATH and Path(value).is_file():
        yield Path(value)


@cache
def digest_of_code() -> str:
    """SHA-256 of all code that decides and simulates."""
    places = (_ROOT / part for part in _CODE)
    files = sorted(
        f for place in places for f in ([place] if place.suffix == ".py" else place.rglob("*.py"))
    )
    return digest([[str(f.relative_to(_ROOT)), digest_of_file(f)] for f in files])


def slug(label: str) -> str:
    """Convert a label to a part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:40] or "policy"
