"""System checks of the files that the server keeps."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from pytest_django import Settings

from controlplane.operations import checks


def test_small_blocks_beside_sqlite_are_warned_about(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LOADMASTER_HOME = tmp_path
    monkeypatch.setattr(checks, "connection", SimpleNamespace(vendor="sqlite"))
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_frsize=4096))
    assert checks.small_blocks(None) == []
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_frsize=1024))
    (warning,) = checks.small_blocks(None)
    assert warning.id == "loadmaster.W009"
    assert "blocks of 1024 bytes" in str(warning.msg)
    monkeypatch.setattr(checks, "connection", SimpleNamespace(vendor="postgresql"))
    assert checks.small_blocks(None) == []
