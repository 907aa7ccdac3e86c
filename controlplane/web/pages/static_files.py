"""Static files: Plotly's script, and names that work before `collectstatic`."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage, Storage
from whitenoise.storage import CompressedManifestStaticFilesStorage

from controlplane.web.pages.plotly_script import SCRIPT, plotly_folder

PLOTLY_NAME = f"vendor/plotly-{version('plotly')}.min.js"
"""Static path of the script, with its version, so that browsers may keep it for ever."""


class _OneFile(FileSystemStorage):
    """Plotly's folder, in which the script has the name of its static path."""

    def path(self, name: str) -> str:
        return super().path(SCRIPT if name == PLOTLY_NAME else name)


class PlotlyFinder(BaseFinder):
    """Finder of the script in Plotly's wheel."""

    def check(self, **kwargs: Any) -> list[Any]:
        return []

    def find(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Return the script's file, in a list with `find_all`; [] for another path."""
        if path != PLOTLY_NAME:
            return []
        file = str(plotly_folder() / SCRIPT)
        wants_all = kwargs.get("find_all") or kwargs.get("all")
        return [file] if wants_all else file

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterable[tuple[str, Storage]]:
        yield PLOTLY_NAME, _OneFile(location=str(plotly_folder()))


class StaticStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]  # untyped base
    """Storage of hashed and compressed files; until they are collected, names are plain."""

    manifest_strict = False

    def stored_name(self, name: str) -> str:
        return str(super().stored_name(name)) if self.hashed_files else name
