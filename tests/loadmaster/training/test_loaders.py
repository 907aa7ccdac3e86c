"""Loaders of plain iterables: gone through again and again, begun in the middle, dealt out to
ranks.
"""

from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.training.checkpoints import Position
from loadmaster.training.loaders import ByEpoch, Epochs, Sharded


def generated(epoch: int) -> Iterator[tuple[int, int]]:
    """A generator, which can be gone through once."""
    return ((epoch, number) for number in range(4))


def test_a_generator_is_made_anew_for_each_epoch_and_begun_where_it_was_left() -> None:
    whole = list(islice(Epochs(ByEpoch(generated), Position(), again=True), 9))
    assert whole == [(step // 4, step % 4) for step in range(9)]
    assert list(islice(Epochs(ByEpoch(generated), Position(6, 1, 2), again=True), 3)) == whole[6:]


@given(st.integers(0, 20), st.integers(1, 4), st.integers(0, 5))
def test_ranks_have_equally_many_batches_and_none_has_anothers(
    batches: int, size: int, begin: int
) -> None:
    parts = [list(Sharded(range(batches), rank, size)) for rank in range(size)]
    assert (
        {len(part) for part in parts}
        == {batches // size}
        == {len(Sharded(range(batches), 0, size))}
    )
    assert sorted(batch for part in parts for batch in part) == list(
        range(batches - batches % size)
    )
    assert [list(Sharded(range(batches), rank, size).iter_from(begin)) for rank in range(size)] == [
        p[begin:] for p in parts
    ]


def test_a_rank_knows_itself_by_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_RANK", "1")
    monkeypatch.setenv("LOADMASTER_WORLD_SIZE", "2")
    assert list(Sharded("abcde")) == ["b", "d"]


def test_a_rank_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="rank 2 is none of 2"):
        Sharded([], 2, 2)


def test_a_part_of_a_stream_has_no_length_and_is_told_of_epochs() -> None:
    part = Sharded(ByEpoch(generated), 1, 2)
    with pytest.raises(TypeError):
        len(part)
    assert list(islice(Epochs(part, Position(1, 0, 1), again=True), 2)) == [(0, 3), (1, 1)]


def test_a_loader_that_can_begin_in_the_middle_is_asked_to() -> None:
    class Seeking:
        asked: list[int] = []

        def iter_from(self, batch: int) -> Iterator[int]:
            self.asked.append(batch)
            return iter(range(batch, 10))

        def __iter__(self) -> Iterator[int]:
            raise AssertionError("it was to begin in the middle")

    assert list(Epochs(Seeking(), Position(7, 0, 7), again=False)) == [7, 8, 9]
    assert list(Sharded(Seeking(), 0, 2).iter_from(3)) == [6, 8]
    assert Seeking.asked == [7, 6]
