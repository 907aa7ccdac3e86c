"""Where compiled kernels are kept: code is loaded from there, so never from a folder that others
may write.
"""

import os
import tempfile
from pathlib import Path

import pytest

from policies.placement import kernels


@pytest.fixture
def read_only_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The package cannot be written; home and temporary folder are below the one returned."""
    package = Path(kernels.__file__).parent
    may = os.access
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(
        os, "access", lambda path, mode: False if Path(path) == package else may(path, mode)
    )
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_writable_package_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert kernels.cache_folder() is None


def test_a_folder_that_was_asked_for_is_left_to_numba(
    monkeypatch: pytest.MonkeyPatch, read_only_package: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(read_only_package))
    assert kernels.cache_folder() is None


def test_a_read_only_package_uses_a_private_folder_of_the_users_home(
    read_only_package: Path,
) -> None:
    folder = kernels.cache_folder()
    assert folder == read_only_package / "home" / ".cache" / "loadmaster" / "kernels"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_without_a_home_it_is_a_private_temporary_folder(read_only_package: Path) -> None:
    (read_only_package / "home").write_text("not a folder")
    folder = kernels.cache_folder()
    assert folder == read_only_package / f"loadmaster-kernels-{os.getuid()}"


def test_a_folder_that_others_may_write_is_not_trusted(read_only_package: Path) -> None:
    (read_only_package / "home").write_text("not a folder")
    planted = read_only_package / f"loadmaster-kernels-{os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    folder = kernels.cache_folder()
    assert folder is not None
    assert folder != planted
    assert folder.stat().st_mode & 0o777 == 0o700
