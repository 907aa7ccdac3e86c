"""A job for tests: a small network trained by PyTorch, alone or by a gang's ranks with gloo. Says
in the end what it has learned.

    python -m tests.torch_gang_job RESULT

The network has dropout and the batches are shuffled, so that a resume which draws other random
numbers is seen in the result. With TORCH_JOB_JOURNALS it keeps a journal of itself, as
`loadmaster.demo.journals` describes.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from loadmaster import training
from loadmaster.demo.journals import JobJournal
from loadmaster.torch import steps
from loadmaster.training.checkpoints import MANIFEST, Manifest
from tests.builders_gangs import JOURNALS

SAMPLES, FEATURES, BATCH = 96, 6, 4


class Diary:
    """The steps done, as part of the state; each is journaled, and what rank 0 has saved."""

    def __init__(self, journal: JobJournal | None) -> None:
        self.done = 0
        self._journal = journal
        self._has_begun = False
        self._saved = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]

    def step(self) -> None:
        if self._journal and not self._has_begun:
            self._journal.resumed(self.done)
        self._has_begun = True
        self.done += 1
        if self._journal:
            self._journal.step(self.done)

    def note_saved(self) -> None:
        """Journal a checkpoint once the manifest names it: only then does it count."""
        path = Path(os.environ.get("LOADMASTER_CHECKPOINT_DIR", "")) / MANIFEST
        with contextlib.suppress(OSError, IndexError):
            newest = Manifest.from_json(path.read_bytes()).checkpoints[-1].position.step
            if self._journal and newest > self._saved and os.environ.get("RANK", "0") == "0":
                self._saved = newest
                self._journal.saved(newest)


def main(result: Path) -> None:
    """Train, and write the network's digest and the losses' sum."""
    torch.set_num_threads(1)
    in_gang = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if in_gang:
        dist.init_process_group("gloo")
    with journal() as kept:
        network, losses = train(in_gang=in_gang, diary=Diary(kept))
    if os.environ.get("RANK", "0") == "0":
        result.write_text(
            json.dumps({"digest": digest(network), "last_loss": losses[-1] if losses else None})
        )
    if in_gang:
        dist.destroy_process_group()


@contextlib.contextmanager
def journal() -> Iterator[JobJournal | None]:
    """The launch's journal, if one is asked for."""
    if JOURNALS not in os.environ:
        yield None
        return
    with JobJournal.of_this_launch(Path(os.environ[JOURNALS])) as kept:
        yield kept


def train(*, in_gang: bool, diary: Diary) -> tuple[nn.Module, list[float]]:
    """The training proper."""
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(SAMPLES, FEATURES), torch.randn(SAMPLES, 1))
    network: nn.Module = nn.Sequential(
        nn.Linear(FEATURES, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1)
    )
    network = DistributedDataParallel(network) if in_gang else network
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    sampler = DistributedSampler(data, seed=7) if in_gang else None
    loader = DataLoader(data, BATCH, sampler=sampler, shuffle=sampler is None)
    losses: list[float] = []
    try:
        for inputs, targets in steps(
            loader, {"network": network, "optimizer": optimizer, "diary": diary}, seed=3
        ):
            diary.note_saved()
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(network(inputs), targets)
            loss.backward()
            optimizer.step()
            diary.step()
            losses.append(float(loss))
            training.report(loss=loss.detach())
    finally:
        diary.note_saved()
    return network, losses


def digest(network: nn.Module) -> str:
    """What tells two networks apart, to the last bit."""
    found = hashlib.sha256()
    for parameter in network.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
