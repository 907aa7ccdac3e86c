from collections.abc import Iterator
from itertools import islice

import pytest

from loadmaster.training.checkpoints import Position
from loadmaster.training.loaders import Epochs


class Named:
    """A loader whose batches say which epoch they belong to, as a shuffling one's order would."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(self.epoch, number) for number in range(self.length)])


class Sized(Named):
    def __len__(self) -> int:
        return self.length


def test_epochs_follow_each_other() -> None:
    assert list(islice(Epochs(["a", "b"], Position(), again=True), 5)) == ["a", "b", "a", "b", "a"]


def test_a_single_pass_ends_with_the_loader() -> None:
    assert list(Epochs(["a", "b"], Position(), again=False)) == ["a", "b"]


@pytest.mark.parametrize("loader", [Named(3), Sized(3)])
@pytest.mark.parametrize("used", range(9))
def test_from_any_position_exactly_the_rest_follows(loader: Named, used: int) -> None:
    whole = list(islice(Epochs(loader, Position(), again=True), 9))
    first = Epochs(loader, Position(), again=True)
    assert list(islice(first, used)) == whole[:used]
    rest = Epochs(loader, Position(used, first.epoch, first.batch), again=True)
    assert list(islice(rest, 9 - used)) == whole[used:]


def test_a_single_pass_that_was_done_yields_nothing_more() -> None:
    assert list(Epochs(["a", "b"], Position(step=2, batch=2), again=False)) == []


@pytest.mark.parametrize("loader", [[], iter(["a"])])
def test_a_loader_that_cannot_go_on_is_named_rather_than_waited_for(
    loader: list[str] | Iterator[str],
) -> None:
    with pytest.raises(ValueError, match="can be iterated again"):
        list(islice(Epochs(loader, Position(), again=True), 3))


def test_a_loader_without_a_length_for_its_data_is_skipped_through() -> None:
    class Lengthless(Named):
        def __len__(self) -> int:
            raise TypeError("an iterable data set has no length")

    assert list(islice(Epochs(Lengthless(2), Position(step=2, batch=2), again=True), 2)) == [
        (1, 0),
        (1, 1),
    ]
