"""PyTorch: the training iterator for a DataLoader and whatever has a `state_dict`.

    for batch in loadmaster.torch.steps(loader, {"model": model, "optimizer": optimizer}):
        loss = train_on(batch)
        loadmaster.training.report(loss=loss)

Needs `pip install 'loadmaster[torch]'`. Ranks of a gang call `init_process_group(...)` as usual.
"""

import hashlib
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from loadmaster import training
from loadmaster.training.launch_run import Metrics
from loadmaster.training.run_folder import JobEnvironment

__all__ = ["Resumable", "load_state", "save_state", "steps"]

RANDOM_SAMPLERS = (
    torch.utils.data.RandomSampler,
    torch.utils.data.SubsetRandomSampler,
    torch.utils.data.WeightedRandomSampler,
)

KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
)
"""Attributes that a loader of the rest of an epoch takes over."""


class Stateful(Protocol):
    """A model, an optimiser, a schedule, a gradient scaler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


def steps(
    loader: DataLoader[Any],
    state: Mapping[str, Stateful],
    *,
    seed: int | None = 0,
    total: int | None = None,
    every_s: float | None = None,
    report: Callable[[], Metrics] | None = None,
    checkpoint_dir: Path | str | None = None,
) -> Iterator[Any]:
    """Yield the loader's batches, epoch after epoch, until the job's steps are done.

    Args:
        loader: any DataLoader; in a gang each rank's needs a DistributedSampler, or an
            IterableDataset that divides itself.
        state: parts of the training's state by name; a DistributedDataParallel is saved as the
            module in it, so that launches with other numbers of ranks can read it.
        seed: sets all generators before each batch and epoch, so a resumed launch draws the numbers
            that an uninterrupted one would (but inside loader workers); None leaves them alone.
        total, every_s, report, checkpoint_dir: as `loadmaster.training.steps`, also for exceptions.
    """
    return training.steps(
        Resumable(loader, seed),
        save=lambda path: save_state(path, state),
        load=lambda path: load_state(path, state),
        total=total,
        every_s=every_s,
        report=report,
        checkpoint_dir=checkpoint_dir,
    )


def save_state(path: Path, state: Mapping[str, Stateful]) -> None:
    """Write the states by name."""
    torch.save({name: _bare(part).state_dict() for name, part in state.items()}, path)


def load_state(path: Path, state: Mapping[str, Stateful]) -> None:
    """Read states back by way of the CPU, running no code that the file may hold.

    Raises KeyError if the file lacks one of them, or has others.
    """
    saved = torch.load(path, map_location="cpu", weights_only=True)
    if saved.keys() != state.keys():
        raise KeyError(
            f"the checkpoint has {', '.join(sorted(saved))}, the script wants"
            f" {', '.join(sorted(state))}"
        )
    for name, part in state.items():
        _bare(part).load_state_dict(saved[name])


def _bare(part: Stateful) -> Stateful:
    """Return the module in a DistributedDataParallel; other parts as they are."""
    inner: Stateful = part.module if isinstance(part, DistributedDataParallel) else part
    return inner


class Resumable:
    """A DataLoader that can start within an epoch, with reproducible random numbers."""

    def __init__(self, loader: DataLoader[Any], seed: int | None = 0) -> None:
        self._loader = loader
        self._seed = seed
        self._epoch = 0
        environment = JobEnvironment.read(os.environ)
        self._rank = environment.rank
        if environment.world_size > 1 and not _is_dealt_out(loader):
            text = "every rank would train on the same batches: give the DataLoader a"
            warnings.warn(f"{text} DistributedSampler", UserWarning, stacklevel=3)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of a sampler, or seed a generator for one without epochs."""
        self._epoch = epoch
        for part in (*_samplers(self._loader), self._loader.dataset):
            set_epoch = getattr(part, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
            elif self._seed is not None and isinstance(part, RANDOM_SAMPLERS):
                part.generator = torch.Generator().manual_seed(_mixed(self._seed, epoch))
        if self._seed is not None:
            mixed = _mixed(self._seed, self._rank, epoch)
            self._loader.generator = torch.Generator().manual_seed(mixed)

    def __iter__(self) -> Iterator[Any]:
        return self.iter_from(0)

    def iter_from(self, batch: int) -> Iterator[Any]:
        """Yield the epoch's batches from number `batch` on."""
        loader, skipped = _rest_of(self._loader, batch)
        source = iter(loader)
        for number in count(batch - skipped):
            self._seed_generators(number)
            try:
                item = next(source)
            except StopIteration:
                return
            if number >= batch:
                yield item

    def _seed_generators(self, batch: int) -> None:
        """Seed the generators of Python, NumPy and PyTorch for a batch."""
        if self._seed is None:
            return
        mixed = _mixed(self._seed, self._rank, self._epoch, batch)
        torch.manual_seed(mixed)
        random.seed(mixed)
        numpy = sys.modules.get("numpy")
        if numpy:
            numpy.random.seed(mixed % 2**32)

    def __len__(self) -> int:
        """Return the batches of an epoch. Raises TypeError if the data have no length."""
        return len(self._loader)


def _mixed(*parts: int) -> int:
    """Return a hash of several numbers, of 63 bits."""
    words = " ".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big") >> 1


def _samplers(loader: DataLoader[Any]) -> tuple[Any, ...]:
    """Return the samplers of a loader, each once; none for data that cannot be sampled."""
    if isinstance(loader.dataset, IterableDataset):
        return ()
    inner = getattr(loader.batch_sampler, "sampler", None)
    samplers: list[Any] = []
    for sampler in (loader.sampler, loader.batch_sampler, inner):
        if sampler is not None and not any(sampler is other for other in samplers):
            samplers.append(sampler)
    return tuple(samplers)


def _is_dealt_out(loader: DataLoader[Any]) -> bool:
    """Return True unless it is certain that all ranks would see the same data."""
    samplers = _samplers(loader)
    for sampler in samplers:
        if hasattr(sampler, "num_replicas") or hasattr(sampler, "set_epoch"):
            return True
    return not samplers


class _Rest:
    """Sampler that leaves out the `first` samples of another one."""

    def __init__(self, sampler: Any, first: int) -> None:
        self._sampler = sampler
        self._first = first

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._sampler), self._first, None)

    def __len__(self) -> int:
        return max(0, len(self._sampler) - self._first)


def _rest_of(loader: DataLoader[Any], batch: int) -> tuple[DataLoader[Any], int]:
    """Return a loader of the batches from number `batch` on.

    Return also the number of batches that it yields before that one, which are to be skipped.
    """
    # 1. Data that cannot be sampled are read from their beginning.
    if not batch or isinstance(loader.dataset, IterableDataset):
        return loader, batch

    # 2. Else a copy of the loader, whose sampler leaves out the batches before.
    order: dict[str, Any] = {"batch_size": None, "sampler": _Rest(loader.sampler, batch)}
    if loader.batch_sampler is not None:
        order = {"batch_sampler": _Rest(loader.batch_sampler, batch)}
    names = (*KEPT, "prefetch_factor") if loader.num_workers else KEPT
    settings = {name: getattr(loader, name) for name in names}
    return DataLoader(loader.dataset, **order, **settings), 0
