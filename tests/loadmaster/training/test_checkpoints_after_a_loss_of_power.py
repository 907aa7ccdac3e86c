"""A saved checkpoint, and the fence that owns the folder, survive a loss of power."""

from functools import partial
from pathlib import Path

import pytest

from loadmaster.training.checkpoints import CheckpointStore, Position, StaleFence
from tests.power_loss import PowerLoss


@pytest.mark.parametrize("saves", [1, 2, 3, 4])
def test_the_newest_checkpoint_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    store = CheckpointStore(tmp_path, 1)
    store.resume()
    for step in range(1, saves + 1):
        with PowerLoss(tmp_path, monkeypatch):
            store.save(Position(step), partial(Path.write_text, data=f"at {step}"))
        found = CheckpointStore(tmp_path, 1).resume()
        assert found is not None
        assert (found[0].read_text(), found[1].step) == (f"at {step}", step)


def test_a_launch_that_was_overtaken_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CheckpointStore(tmp_path, 1).resume()
    with PowerLoss(tmp_path, monkeypatch):
        CheckpointStore(tmp_path, 2).resume()
    with pytest.raises(StaleFence):
        CheckpointStore(tmp_path, 1).resume()


def test_what_was_not_synced_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above could not fail."""
    (tmp_path / "old").write_text("old")
    with PowerLoss(tmp_path, monkeypatch):
        (tmp_path / "new").write_text("new")
        (tmp_path / "old").write_text("changed")
        (tmp_path / "old").rename(tmp_path / "renamed")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old": "old"}
