import errno
import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from loadmaster.training.checkpoints import (
    MANIFEST,
    PREVIOUS,
    CheckpointError,
    CheckpointStore,
    Disk,
    Position,
    StaleFence,
    is_disk_full,
)


class FullDisk(Disk):
    """Fails at the given operation (1 is the first), having written half of what it was to
    write.
    """

    def __init__(self, fails_at: int, code: int = errno.ENOSPC) -> None:
        self._left = fails_at
        self._code = code

    def _use(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise OSError(self._code, os.strerror(self._code))

    def write(self, path: Path, content: bytes) -> None:
        super().write(path, content[: len(content) // 2])
        self._use()
        super().write(path, content)

    def sync(self, path: Path) -> None:
        self._use()
        super().sync(path)

    def rename(self, source: Path, target: Path) -> None:
        self._use()
        super().rename(source, target)


def saver(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


def opened(
    folder: Path, fence: int | None = 1, disk: Disk | None = None, warnings: list[str] | None = None
) -> CheckpointStore:
    store = CheckpointStore(
        folder,
        fence,
        disk=disk,
        warn=(warnings if warnings is not None else []).append,
        lock_wait_s=0.0,
    )
    store.resume()
    return store


def resumed(
    folder: Path, fence: int | None = None, warnings: list[str] | None = None
) -> tuple[str, Position] | None:
    """What a new launch finds: the content of the newest whole checkpoint, and its position."""
    store = CheckpointStore(
        folder, fence, warn=(warnings if warnings is not None else []).append, lock_wait_s=0.0
    )
    found = store.resume()
    return found and (found[0].read_text(), found[1])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.ckpt"))


def test_a_new_folder_has_nothing_to_resume(tmp_path: Path) -> None:
    assert resumed(tmp_path / "new" / "folder", fence=1) is None


def test_a_checkpoint_is_resumed_with_its_position(tmp_path: Path) -> None:
    position = Position(step=40, epoch=2, batch=4, loss=0.25)
    opened(tmp_path).save(position, saver("forty"))
    assert resumed(tmp_path, fence=2) == ("forty", position)


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    store = opened(tmp_path, fence=3)
    for step in (10, 20, 30):
        store.save(Position(step), saver(str(step)))
    assert store.saved_step == 30
    assert names(tmp_path) == ["step-000000000020-fence-3.ckpt", "step-000000000030-fence-3.ckpt"]


def test_nothing_temporary_is_left_behind(tmp_path: Path) -> None:
    opened(tmp_path).save(Position(1), saver("one"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock",
        MANIFEST,
        PREVIOUS,
        "step-000000000001-fence-1.ckpt",
    ]


@pytest.mark.parametrize("damage", [b"", b"twent", b"TWENTY"])
def test_a_torn_checkpoint_gives_way_to_the_one_before_it(tmp_path: Path, damage: bytes) -> None:
    store = opened(tmp_path)
    store.save(Position(10), saver("ten"))
    newest = store.save(Position(20), saver("twenty"))
    (tmp_path / newest.file).write_bytes(damage)
    warnings: list[str] = []
    assert resumed(tmp_path, fence=2, warnings=warnings) == ("ten", Position(10))
    assert "step 20" in warnings[0]


def test_a_missing_checkpoint_gives_way_to_the_one_before_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save(Position(10), saver("ten"))
    (tmp_path / store.save(Position(20), saver("twenty")).file).unlink()
    assert resumed(tmp_path, fence=2) == ("ten", Position(10))


def test_after_a_torn_one_the_good_ones_are_those_that_are_kept(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save(Position(10), saver("ten"))
    (tmp_path / store.save(Position(20), saver("twenty")).file).write_bytes(b"torn")
    again = opened(tmp_path, fence=2)
    again.save(Position(15), saver("fifteen"))
    assert names(tmp_path) == ["step-000000000010-fence-1.ckpt", "step-000000000015-fence-2.ckpt"]


def test_a_job_whose_checkpoints_are_all_torn_begins_anew_and_says_so(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for step in (10, 20):
        (tmp_path / store.save(Position(step), saver("whole")).file).write_bytes(b"torn")
    warnings: list[str] = []
    assert resumed(tmp_path, fence=2, warnings=warnings) is None
    assert len(warnings) == 2


def test_a_launch_with_a_lower_fence_cannot_open_the_folder(tmp_path: Path) -> None:
    opened(tmp_path, fence=5)
    with pytest.raises(StaleFence, match=r"fence 4 may not use .* fence 5 has taken over") as stale:
        opened(tmp_path, fence=4)
    assert stale.value.code == 76


def test_a_launch_that_became_stale_writes_nothing_more(tmp_path: Path) -> None:
    old = opened(tmp_path, fence=1)
    old.save(Position(10), saver("old ten"))
    new = opened(tmp_path, fence=2)
    with pytest.raises(StaleFence):
        old.save(Position(90), saver("stale"))
    assert resumed(tmp_path) == ("old ten", Position(10))
    new.save(Position(20), saver("new twenty"))
    with pytest.raises(StaleFence):
        old.save(Position(100), saver("stale"))
    assert resumed(tmp_path) == ("new twenty", Position(20))


def test_a_launch_that_becomes_stale_while_it_saves_does_not_supersede_the_newer_one(
    tmp_path: Path,
) -> None:
    old = opened(tmp_path, fence=1)

    def slow_save(path: Path) -> None:
        path.write_text("stale")
        opened(tmp_path, fence=2).save(Position(20), saver("new"))

    with pytest.raises(StaleFence):
        old.save(Position(90), slow_save)
    assert resumed(tmp_path) == ("new", Position(20))
    assert names(tmp_path) == ["step-000000000020-fence-2.ckpt"]


def test_a_launch_that_becomes_stale_while_it_saves_is_noticed_before_anything_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer one is killed as soon as its manifest is written."""
    old = opened(tmp_path, fence=1)

    def slow_save(path: Path) -> None:
        path.write_text("stale")
        with monkeypatch.context() as patch:
            patch.setattr(CheckpointStore, "_sweep", lambda *_: None)
            opened(tmp_path, fence=2)

    with pytest.raises(StaleFence):
        old.save(Position(90), slow_save)
    assert resumed(tmp_path) is None


def test_the_same_fence_may_open_the_folder_again(tmp_path: Path) -> None:
    opened(tmp_path, fence=2).save(Position(10), saver("ten"))
    assert resumed(tmp_path, fence=2) == ("ten", Position(10))


def test_a_plain_script_goes_on_where_an_agents_launches_ended(tmp_path: Path) -> None:
    opened(tmp_path, fence=7).save(Position(10), saver("ten"))
    plain = opened(tmp_path, fence=None)
    plain.save(Position(20), saver("twenty"))
    assert resumed(tmp_path, fence=7) == ("twenty", Position(20))


OPERATIONS_OF_A_SAVE = 8


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("fails_at", range(1, OPERATIONS_OF_A_SAVE + 1))
def test_wherever_the_disk_fills_up_a_whole_checkpoint_stands_and_the_next_save_succeeds(
    tmp_path: Path, fails_at: int, code: int
) -> None:
    opened(tmp_path).save(Position(10), saver("ten"))
    store = CheckpointStore(tmp_path, 1, disk=FullDisk(fails_at, code))
    store.resume()
    with pytest.raises(OSError, match=re.escape(os.strerror(code))) as full:
        store.save(Position(20), saver("twenty"))
    assert is_disk_full(full.value)
    assert resumed(tmp_path) in [("ten", Position(10)), ("twenty", Position(20))]
    store.save(Position(30), saver("thirty"))
    assert resumed(tmp_path) == ("thirty", Position(30))


def test_a_save_has_as_many_disk_operations_as_the_test_above_tries(tmp_path: Path) -> None:
    opened(tmp_path).save(Position(10), saver("ten"))
    store = CheckpointStore(tmp_path, 1, disk=FullDisk(OPERATIONS_OF_A_SAVE + 1))
    store.resume()
    store.save(Position(20), saver("twenty"))
    with pytest.raises(OSError, match="No space left"):
        store.save(Position(30), saver("thirty"))


def test_a_disk_that_is_full_at_the_start_delays_the_take_over_to_the_next_save(
    tmp_path: Path,
) -> None:
    opened(tmp_path, fence=1).save(Position(10), saver("ten"))
    warnings: list[str] = []
    store = opened(tmp_path, fence=2, disk=FullDisk(1), warnings=warnings)
    assert "could not take over" in warnings[0]
    assert store.saved_step == 10
    store.save(Position(20), saver("twenty"))
    with pytest.raises(StaleFence):
        opened(tmp_path, fence=1)


def test_an_error_that_is_not_about_room_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(PermissionError):
        opened(tmp_path, disk=FullDisk(1, errno.EACCES))
    assert not is_disk_full(PermissionError(errno.EACCES, "denied"))


def test_a_full_disk_is_recognised_behind_the_error_of_a_library() -> None:
    wrapped = RuntimeError("writing failed")
    assert not is_disk_full(wrapped)
    wrapped.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert is_disk_full(wrapped)


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b'{"version": 99}', b'{"version": 1, "fence": 1, "checkpoints": [{}]}'],
)
def test_a_damaged_manifest_gives_way_to_the_one_before_it(tmp_path: Path, damage: bytes) -> None:
    store = opened(tmp_path)
    for step in (10, 20, 30):
        store.save(Position(step), saver(str(step)))
    (tmp_path / MANIFEST).write_bytes(damage)
    warnings: list[str] = []
    assert resumed(tmp_path, warnings=warnings) == ("20", Position(20))
    assert MANIFEST in warnings[0]


def test_with_no_readable_manifest_the_job_is_not_begun_anew_behind_the_users_back(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path)
    store.save(Position(10), saver("ten"))
    for name in (MANIFEST, PREVIOUS):
        (tmp_path / name).write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"restore manifest\.json, or empty the folder"):
        opened(tmp_path, fence=2)
    assert names(tmp_path) == ["step-000000000010-fence-1.ckpt"]


def test_leftovers_of_killed_launches_are_swept_and_the_users_own_files_are_not(
    tmp_path: Path,
) -> None:
    for name in (
        ".tmp-step-000000000005-fence-1.ckpt",
        "step-000000000004-fence-1.ckpt",
        "notes.txt",
        "best.ckpt",
    ):
        (tmp_path / name).write_text("there before")
    newer = tmp_path / ".tmp-step-000000000009-fence-3.ckpt"
    newer.write_text("being written by a newer launch")
    opened(tmp_path, fence=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock",
        newer.name,
        "best.ckpt",
        MANIFEST,
        "notes.txt",
    ]


def test_a_library_that_appends_its_own_suffix_is_forgiven(tmp_path: Path) -> None:
    opened(tmp_path).save(
        Position(10), lambda path: path.with_name(f"{path.name}.npz").write_text("ten")
    )
    assert resumed(tmp_path, fence=2) == ("ten", Position(10))


def test_a_save_that_writes_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="wrote no file"):
        opened(tmp_path).save(Position(10), lambda path: None)


def test_an_error_of_the_users_save_leaves_the_former_checkpoint(tmp_path: Path) -> None:
    def broken(path: Path) -> None:
        path.write_text("half")
        raise ZeroDivisionError

    store = opened(tmp_path)
    store.save(Position(10), saver("ten"))
    with pytest.raises(ZeroDivisionError):
        store.save(Position(20), broken)
    assert resumed(tmp_path) == ("ten", Position(10))
    assert len(list(tmp_path.glob(".tmp-*"))) == 0


def test_a_folder_locked_for_too_long_counts_as_one_without_room(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with (tmp_path / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError) as locked:
            store.save(Position(10), saver("ten"))
    assert is_disk_full(locked.value)
    store.save(Position(20), saver("twenty"))
    assert store.saved_step == 20


def test_another_rank_of_a_gang_reads_the_very_checkpoint_and_touches_nothing(
    tmp_path: Path,
) -> None:
    lead = opened(tmp_path, 3)
    first = lead.save(Position(4), saver("four"))
    lead.save(Position(8), saver("eight"))
    (tmp_path / ".tmp-step-000000000009-fence-3.ckpt").write_text("being written by the lead")
    before = sorted(path.name for path in tmp_path.iterdir())
    member = CheckpointStore(tmp_path, 3, lock_wait_s=0.0)
    assert member.follow(first).read_text() == "four"
    assert (member.saved_step, member.newest) == (4, first)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_checkpoint_that_another_rank_has_and_this_one_does_not_see_is_named(
    tmp_path: Path,
) -> None:
    checkpoint = opened(tmp_path / "one").save(Position(4), saver("four"))
    with pytest.raises(CheckpointError, match=r"step 4 .* all nodes of a gang need one folder"):
        CheckpointStore(tmp_path / "other", 1, lock_wait_s=0.0).follow(checkpoint)


def test_a_rank_that_only_looks_takes_nothing_over(tmp_path: Path) -> None:
    opened(tmp_path, 3).save(Position(4), saver("four"))
    looker = CheckpointStore(tmp_path, 5, lock_wait_s=0.0)
    found = looker.resume(own=False)
    assert found is not None
    assert found[1].step == 4
    assert opened(tmp_path, 3).saved_step == 4, "the folder still is the launch's with fence 3"
