"""Checkpoints on a file system that is really full, and killed at many moments of a save: the older
one stands and is resumed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadmaster.training.checkpoints import CheckpointStore, Disk, Position, is_disk_full

REPOSITORY = Path(__file__).parents[3]
PIECE = 256 * 1024
KILLS = 40

TRAINING = """
import sys, time
from pathlib import Path
import loadmaster.training
size = [1]
def save(path):
    with path.open("wb") as file:
        for _ in range(size[0]):
            file.write(b"x" * 262144)
def load(path):
    print("resumed with", path.stat().st_size, flush=True)
for step in loadmaster.training.steps(range(50), save=save, load=load, total=6):
    if step == 3:
        size[0] = 64  # from here on there is no room for it
    time.sleep(0.01)  # so that a checkpoint is due at every step
    print("step", step, flush=True)
"""
SAVER = """
import sys, itertools
from pathlib import Path
from loadmaster.training.checkpoints import CheckpointStore, Position
store = CheckpointStore(Path(sys.argv[1]), 1)
found = store.resume()
for step in itertools.count(found[1].step + 1 if found else 1):
    def save(path):
        path.write_bytes(step.to_bytes(4, "big") * 50_000)
    store.save(Position(step), save)
    print(step, flush=True)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "loadmaster-test", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def whole(folder: Path, fence: int | None = None) -> tuple[bytes, int]:
    """Content and step of what a new launch resumes."""
    found = CheckpointStore(folder, fence).resume()
    assert found is not None
    return found[0].read_bytes(), found[1].step


def fill(path: Path, size: int) -> None:
    with path.open("wb") as file:
        while size > 0:
            file.write(b"x" * min(size, PIECE))
            size -= PIECE


@pytest.mark.root
@pytest.mark.parametrize("room", [0, 1, 3, 5, 8])
def test_with_whatever_room_is_left_the_older_checkpoint_is_what_the_next_launch_finds(
    small_disk: Path, room: int
) -> None:
    folder = small_disk / "checkpoints"
    store = CheckpointStore(folder, 1)
    store.resume()
    store.save(Position(1), lambda path: path.write_bytes(b"one" * 1000))
    free = os.statvfs(small_disk)
    fill(small_disk / "ballast", free.f_bavail * free.f_frsize - room * 4096)
    with pytest.raises(OSError, match="No space") as error:
        store.save(Position(2), lambda path: fill(path, 40_000))
    assert is_disk_full(error.value)
    assert whole(folder) == (b"one" * 1000, 1)
    assert [path.name for path in folder.glob(".tmp-*")] == [], "a torn one is left to take room"
    (small_disk / "ballast").unlink()
    store.save(Position(3), lambda path: path.write_bytes(b"three"))
    assert whole(folder) == (b"three", 3)


@pytest.mark.root
def test_a_training_job_goes_on_without_room_says_so_and_resumes_from_what_stands(
    small_disk: Path,
) -> None:
    environ = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "LOADMASTER_CHECKPOINT_DIR": str(small_disk / "checkpoints"),
    }
    script = [sys.executable, "-c", TRAINING]
    environ["LOADMASTER_CHECKPOINT_EVERY_S"] = "0.001"
    first = subprocess.run(script, env=environ, capture_output=True, text=True, timeout=120)
    assert first.returncode == 0, first.stderr
    assert "step 5" in first.stdout
    assert "no room for the checkpoint of step" in first.stderr
    content, step = whole(small_disk / "checkpoints")
    assert len(content) == PIECE
    assert 0 < step <= 4


@pytest.mark.slow
def test_killed_at_whatever_moment_a_save_leaves_a_whole_checkpoint_and_none_gets_lost(
    tmp_path: Path,
) -> None:
    luck, said = random.Random(7), 0
    for _ in range(KILLS):
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path)],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(luck.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0].split()
        said = int(rest[-1]) if rest else said
        content, step = whole(tmp_path, 1)
        assert content == step.to_bytes(4, "big") * 50_000
        assert step >= said, "a checkpoint that was said to be saved is gone"
        assert len(list(tmp_path.glob("*.ckpt"))) <= 3


def test_older_ones_go_only_after_the_newer_one_and_its_name_are_on_the_disk(
    tmp_path: Path,
) -> None:
    done: list[str] = []

    class Watched(Disk):
        def sync(self, path: Path) -> None:
            super().sync(path)
            done.append(
                f"sync {path.name}: {sorted(p.name[5:17] for p in tmp_path.glob('step-*'))}"
            )

    store = CheckpointStore(tmp_path, 1, disk=Watched())
    store.resume()
    for step in (1, 2):
        store.save(Position(step), lambda path: path.write_bytes(b"x"))
    done.clear()
    store.save(Position(3), lambda path: path.write_bytes(b"x"))
    assert all("000000000001" in line for line in done), (
        "the oldest went before the newest was durable"
    )
    assert not list(tmp_path.glob("step-000000000001*"))


def test_a_checkpoint_whose_bytes_changed_on_the_disk_gives_way_to_the_older_one(
    tmp_path: Path,
) -> None:
    store = CheckpointStore(tmp_path, 1)
    store.resume()
    store.save(Position(1), lambda path: path.write_bytes(b"1"))
    store.save(Position(2), lambda path: path.write_bytes(b"2"))
    newest = next(tmp_path.glob("step-000000000002*"))
    newest.write_bytes(b"9")
    assert whole(tmp_path, 1) == (b"1", 1)
    assert json.loads((tmp_path / "manifest.json").read_text())["checkpoints"]
