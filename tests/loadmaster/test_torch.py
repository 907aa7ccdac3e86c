"""The adapter for PyTorch: orders that a resumed launch repeats, epochs begun in the middle, states
saved and read back.
"""

import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from loadmaster.training.checkpoints import Position
from loadmaster.training.loaders import Epochs

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def torch() -> Any:
    """PyTorch; without it these tests fail: `pip install -c constraints.txt -e '.[test]'` brings
    it.
    """
    import torch
    import torch.utils.data

    return torch


@pytest.fixture
def adapter(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module under test, in a process of one rank."""
    from loadmaster import torch as adapter

    for name in ("RANK", "WORLD_SIZE", "LOADMASTER_RANK", "LOADMASTER_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return adapter


class Counted:
    """A data set that counts what is taken from it."""

    def __init__(self, length: int = 10) -> None:
        self.length = length
        self.taken: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.taken.append(index)
        return index


def first(epochs: Epochs[Any], number: int) -> list[list[int]]:
    """So many batches as plain lists."""
    return [
        batch.tolist() if hasattr(batch, "tolist") else [batch] for batch in islice(epochs, number)
    ]


SHAPES: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "shuffled, without the last": {"shuffle": True, "drop_last": True},
    "one by one": {"batch_size": None, "shuffle": True},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("used", [0, 1, 3, 4, 6])
def test_from_any_position_exactly_the_rest_follows(
    torch: Any, adapter: Any, shape: str, used: int
) -> None:
    def epochs(position: Position) -> Epochs[Any]:
        loader = torch.utils.data.DataLoader(Counted(), **{"batch_size": 3, **SHAPES[shape]})
        return Epochs(adapter.Resumable(loader, 5), position, again=True)

    torch.manual_seed(1)
    whole = first(epochs(Position()), 12)
    torch.manual_seed(2)  # another launch: what its generators were at does not matter
    begun = epochs(Position())
    assert first(begun, used) == whole[:used]
    torch.manual_seed(3)
    assert first(epochs(Position(used, begun.epoch, begun.batch)), 12 - used) == whole[used:]


def test_epochs_are_shuffled_differently_and_seeds_make_a_difference(
    torch: Any, adapter: Any
) -> None:
    def run(seed: int) -> list[list[int]]:
        return first(
            Epochs(
                adapter.Resumable(torch.utils.data.DataLoader(Counted(), 10, shuffle=True), seed),
                Position(),
                again=True,
            ),
            2,
        )

    assert run(1) == run(1)
    assert run(1)[0] != run(1)[1]
    assert run(1) != run(2)


def test_what_was_used_is_not_loaded_again(torch: Any, adapter: Any) -> None:
    data = Counted()
    loader = torch.utils.data.DataLoader(data, 2, sampler=torch.utils.data.SequentialSampler(data))
    assert [batch.tolist() for batch in adapter.Resumable(loader).iter_from(3)] == [[6, 7], [8, 9]]
    assert data.taken == [6, 7, 8, 9]


WORKERS = """
import torch.utils.data
from itertools import islice
from loadmaster.training.checkpoints import Position
from loadmaster.training.loaders import Epochs
from loadmaster.torch import Resumable

class Numbers:
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return index

loader = torch.utils.data.DataLoader(Numbers(), 2, shuffle=True, num_workers=1, prefetch_factor=4)
def batches(position):
    return [b.tolist() for b in islice(Epochs(Resumable(loader, 1), position, again=False), 5)]

whole, rest = batches(Position()), batches(Position(2, 0, 2))
print(sorted(sum(whole, [])) == list(range(10)) and rest == whole[2:])
"""


def test_with_loader_workers_it_is_the_same() -> None:
    """In a process of its own: the workers are forked, and what else happens in the tests' process
    is none of their business.
    """
    done = subprocess.run(
        [sys.executable, "-c", WORKERS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_stream_is_gone_through_to_where_it_was_left(torch: Any, adapter: Any) -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]  # torch is Any
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter(range(10 * self.epoch, 10 * self.epoch + 6))

    def epochs(position: Position) -> Epochs[Any]:
        return Epochs(
            adapter.Resumable(torch.utils.data.DataLoader(Stream(), 2)), position, again=True
        )

    assert first(epochs(Position()), 4) == [[0, 1], [2, 3], [4, 5], [10, 11]]
    assert first(epochs(Position(2, 0, 2)), 2) == [[4, 5], [10, 11]]


def test_each_rank_gets_its_own_part_and_is_told_of_epochs(
    torch: Any, adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches(rank: int, position: Position) -> list[list[int]]:
        monkeypatch.setenv("LOADMASTER_RANK", str(rank))
        monkeypatch.setenv("LOADMASTER_WORLD_SIZE", "2")
        data = Counted(12)
        sampler = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=rank, seed=4)
        loader = torch.utils.data.DataLoader(data, 2, sampler=sampler)
        return first(Epochs(adapter.Resumable(loader), position, again=True), 6 - position.step)

    both = [batches(rank, Position()) for rank in range(2)]
    seen = [
        [index for part in both for batch in part[:3] for index in batch],
        [i for part in both for b in part[3:] for i in b],
    ]
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(12))
    assert seen[0] != seen[1], "another epoch, another order"
    assert [batches(rank, Position(4, 1, 1)) for rank in range(2)] == [part[4:] for part in both]


def test_ranks_that_would_all_train_on_the_same_batches_are_warned(
    torch: Any, adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match="give the DataLoader a DistributedSampler"):
        adapter.Resumable(torch.utils.data.DataLoader(Counted()))


def test_the_numbers_drawn_in_a_step_depend_on_rank_and_step_alone(
    torch: Any, adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(position: int, rank: int = 0, seed: int | None = 1) -> list[tuple[float, float]]:
        monkeypatch.setenv("LOADMASTER_RANK", str(rank))
        monkeypatch.setenv("LOADMASTER_WORLD_SIZE", "2")
        sampler = torch.utils.data.DistributedSampler(Counted(), num_replicas=2, rank=0)
        loader = adapter.Resumable(torch.utils.data.DataLoader(Counted(), 1, sampler=sampler), seed)
        loader.set_epoch(0)
        return [(float(torch.rand(1)), random.random()) for _ in loader.iter_from(position)]

    whole = drawn(0)
    assert drawn(3) == whole[3:]
    assert drawn(0, rank=1) != whole
    assert len(set(whole)) == len(whole) == 5
    assert drawn(0, seed=2) != whole
    assert drawn(0, seed=None) != drawn(0, seed=None), "then the generators are the script's own"


class Part:
    """Something with a state."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def test_states_are_read_back_as_they_were_written(
    torch: Any, adapter: Any, tmp_path: Path
) -> None:
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(3)).sum().backward()
    optimizer.step()
    adapter.save_state(
        tmp_path / "state", {"layer": layer, "optimizer": optimizer, "part": Part(7)}
    )
    other = torch.nn.Linear(3, 2)
    others, part = torch.optim.Adam(other.parameters()), Part(0)
    adapter.load_state(tmp_path / "state", {"layer": other, "optimizer": others, "part": part})
    assert torch.equal(layer.weight, other.weight)
    assert others.state_dict()["state"][0]["step"] == 1
    assert part.value == 7


def test_a_checkpoint_of_another_script_is_named_rather_than_half_read(
    adapter: Any, tmp_path: Path
) -> None:
    adapter.save_state(tmp_path / "state", {"model": Part(1)})
    with pytest.raises(
        KeyError, match="the checkpoint has model, the script wants model, optimizer"
    ):
        adapter.load_state(tmp_path / "state", {"model": Part(1), "optimizer": Part(2)})


def test_a_checkpoint_can_run_no_code(torch: Any, adapter: Any, tmp_path: Path) -> None:
    torch.save({"part": {"value": Part(3)}}, tmp_path / "state")
    with pytest.raises(Exception, match=r"[Ww]eights"):
        adapter.load_state(tmp_path / "state", {"part": Part(0)})


def test_a_script_runs_by_hand_and_goes_on_where_it_was_broken_off(
    torch: Any, adapter: Any, tmp_path: Path
) -> None:
    def run(total: int) -> tuple[list[list[int]], Part]:
        part = Part(0)
        seen = []
        loader = torch.utils.data.DataLoader(Counted(), 3, shuffle=True)
        for batch in adapter.steps(loader, {"part": part}, total=total, checkpoint_dir=tmp_path):
            seen.append(batch.tolist())
            part.value += 1
        return seen, part

    begun, _ = run(3)
    rest, part = run(7)
    assert part.value == 7
    whole = Epochs(
        adapter.Resumable(torch.utils.data.DataLoader(Counted(), 3, shuffle=True)),
        Position(),
        again=True,
    )
    assert begun + rest == first(whole, 7)
