"""Small files that others may replace while they are read."""

import os
from pathlib import Path

import pytest

from loadmaster.files import open_plain, open_real


def read(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("hunter2")
    return tmp_path / "secret" / "key"


def test_an_ordinary_file_is_opened_where_it_is(secret: Path) -> None:
    assert read(open_real(secret)) == read(open_plain(secret)) == b"hunter2"


def test_no_link_is_followed_neither_the_last_nor_a_folder_before(secret: Path) -> None:
    job = secret.parents[1] / "job"
    job.mkdir()
    (job / "folder").symlink_to(secret.parent)
    (job / "file").symlink_to(secret)
    for path in (job / "folder" / "key", job / "file"):
        with pytest.raises(FileNotFoundError):
            open_real(path)


def test_a_pipe_or_a_folder_is_no_ordinary_file_and_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing", tmp_path / "pipe" / "below"):
        with pytest.raises(FileNotFoundError):
            open_real(path)
