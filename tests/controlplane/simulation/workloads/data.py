"""Whole data files, which are no part of the project: in ../shared/data beside it, or where
LOADMASTER_DATA says.
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


def whole_file(name: str) -> Path:
    """The file; the test is skipped, saying so, where it is absent."""
    folder = Path(os.environ.get("LOADMASTER_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / name).exists():
        pytest.skip(
            f"{folder / name} is absent; set LOADMASTER_DATA to the folder of the data files"
        )
    return folder / name
