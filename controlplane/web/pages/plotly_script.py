"""Plotly's script in its wheel, for pages and for reports."""

from importlib.util import find_spec
from pathlib import Path

SCRIPT = "plotly.min.js"
"""Name of the script's file."""


def plotly_folder() -> Path:
    """Return the folder of the script in the wheel, without importing the package (slow)."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("plotly is not installed; install the extra `server`")
    return Path(spec.submodule_search_locations[0]) / "package_data"
