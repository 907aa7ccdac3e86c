"""Folders that runs leave are removed, whatever a job has put there, and no run waits for it."""

import logging
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from loadmaster.agent.runtimes import removal
from loadmaster.agent.runtimes.base import RunId, RunState
from loadmaster.agent.runtimes.process import ProcessRuntime
from loadmaster.agent.runtimes.removal import LONGEST_S, Remover, remove_tree
from tests.builders_agent import until

RUN = RunId("a-1", 1)
NOBODY = 65534


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[ProcessRuntime]:
    with closing(ProcessRuntime(tmp_path / "runs")) as runtime:
        yield runtime


def a_folder(runtime: ProcessRuntime) -> Path:
    folder = runtime.folder(RUN)
    (folder / "work").mkdir(parents=True)
    (folder / "work" / "data").write_text("some")
    (folder / "spec.json").write_text("{}")
    return folder


def make_deep(folder: Path, levels: int) -> None:
    at = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A folder of a user without rights over others' files, as whom the test goes on."""
    with tempfile.TemporaryDirectory() as name:
        if os.geteuid():
            yield Path(name)
            return
        os.chown(name, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)


def test_a_run_with_a_folder_of_great_depth_is_removed(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    make_deep(a_folder(runtime) / "work", 1100)
    try:
        runtime.remove(RUN)
        assert runtime.list() == ()
        until(lambda: not list((tmp_path / "runs").iterdir()))
    finally:  # else the cleaning up after later tests fails
        subprocess.run(["rm", "-rf", tmp_path / "runs"], check=True)


def test_a_removal_waits_for_no_file(
    runtime: ProcessRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on = threading.Event()
    monkeypatch.setattr(removal, "remove_tree", lambda folder: going_on.wait())
    a_folder(runtime)
    runtime.remove(RUN)
    assert runtime.poll(RUN).state is RunState.ABSENT
    assert runtime.list() == ()
    going_on.set()


def test_an_agent_goes_on_with_what_a_killed_one_was_removing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, closing(ProcessRuntime(tmp_path / "runs")) as runtime:
        patch.setattr(Remover, "add", lambda self, folder: None)
        a_folder(runtime)
        runtime.remove(RUN)
        assert list((tmp_path / "runs").iterdir())
    with closing(ProcessRuntime(tmp_path / "runs")):
        until(lambda: not list((tmp_path / "runs").iterdir()))


def test_folders_that_their_owner_closed_are_removed(as_nobody: Path) -> None:
    for name, mode in (("a/read-only", 0o555), ("a/read-only/b/closed", 0o000), ("c", 0o500)):
        (as_nobody / name).mkdir(parents=True)
        if mode:
            (as_nobody / name / "file").write_text("some")
    for name, mode in (("a/read-only/b/closed", 0), ("a/read-only", 0o555), ("c", 0o500)):
        (as_nobody / name).chmod(mode)
    for name in ("a", "c"):
        remove_tree(as_nobody / name)
    assert list(as_nobody.iterdir()) == []


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    (tmp_path / "own" / "work").mkdir(parents=True)
    (tmp_path / "own" / "work" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "own" / "link").symlink_to(tmp_path / "other")
    remove_tree(tmp_path / "own")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert (tmp_path / "other" / "file").read_text() == "mine"
    (tmp_path / "link").symlink_to(tmp_path / "other")
    with pytest.raises(NotADirectoryError):
        remove_tree(tmp_path / "link")


def test_what_cannot_be_removed_does_not_keep_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def may_fail(name: str, *, dir_fd: int) -> None:
        if name == "stays":
            raise PermissionError(name)
        unlink(name, dir_fd=dir_fd)

    for name in ("a/b/stays", "a/b/goes", "a/goes", "goes"):
        (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / name).write_text("some")
    monkeypatch.setattr(os, "unlink", may_fail)
    with pytest.raises(PermissionError, match="stays"):
        remove_tree(tmp_path / "own")
    monkeypatch.undo()
    left = [path.name for path in (tmp_path / "own").rglob("*") if path.is_file()]
    assert left == ["stays"]


def test_a_folder_that_stays_is_told_once_and_tried_again_later_and_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(folder: Path) -> None:
        raise PermissionError("not yours")

    remover = Remover()
    monkeypatch.setattr(removal, "remove_tree", fail)
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)
    remover.add(Path("/runs/old"))
    now_s, waits = 0.0, list[float]()
    with caplog.at_level(logging.WARNING):
        for _ in range(8):
            wait_s = remover.work(now_s)
            assert wait_s is not None
            waits.append(wait_s)
            now_s += wait_s
    assert waits[:3] == [60.0, 120.0, 240.0]
    assert waits[-1] == LONGEST_S
    assert len(caplog.records) == 1
