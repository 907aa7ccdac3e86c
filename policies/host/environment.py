"""Environment of the processes that run policies."""

from __future__ import annotations

import os
from pathlib import Path

PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "SYSTEMROOT")
PASSED_ON_PREFIXES = ("LC_", "NUMBA_", "PYTHON", "COVERAGE_", "OMP_", "OPENBLAS_", "MKL_")
"""Policies have no business with the server's secrets."""


def of_a_child() -> dict[str, str]:
    """Return the variables that a child needs, with this package's folder first on its path."""
    kept = {
        k: v for k, v in os.environ.items() if k in PASSED_ON or k.startswith(PASSED_ON_PREFIXES)
    }
    folder = str(Path(__file__).resolve().parents[2])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, kept.get("PYTHONPATH"))))
    return kept
