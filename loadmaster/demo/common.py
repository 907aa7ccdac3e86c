"""Common parts of the demo's programs: data, reproducible batches, Adam, training loop."""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loadmaster import training

Array = NDArray[np.float64]
Parameters = dict[str, Array]

ADAM_DECAY = (0.9, 0.999)
ADAM_EPSILON = 1e-8
NOISE = 0.05
SAY_EVERY = 20


@dataclass(frozen=True, slots=True)
class Dataset:
    """Inputs, a sample a row, and targets: classes (n,), or values (n, 1)."""

    inputs: Array
    targets: Array
    classes: int


class Network(Protocol):
    """A network by hand: parameters, mean loss of a batch, gradients."""

    parameters: Parameters

    def loss_and_gradients(self, inputs: Array, targets: Array) -> tuple[float, Parameters]: ...


def digits() -> Dataset:
    """8 x 8 images of handwritten digits, flat, 0 to 1 (1797 samples, 10 classes)."""
    table = np.loadtxt(_shipped("digits.csv.gz"), delimiter=",")
    return Dataset(table[:, :-1] / 16.0, table[:, -1], 10)


def breast_cancer() -> Dataset:
    """Wisconsin breast cancer: 30 standardised features of 569 samples, 2 classes."""
    table = np.loadtxt(_shipped("breast_cancer.csv"), delimiter=",", skiprows=1)
    return Dataset(_standardised(table[:, :-1]), table[:, -1], 2)


def diabetes() -> Dataset:
    """Progression of diabetes in a year: 442 samples, 10 features, a value to predict."""
    inputs = np.loadtxt(_shipped("diabetes_data_raw.csv.gz"))
    targets = np.loadtxt(_shipped("diabetes_target.csv.gz"))
    return Dataset(_standardised(inputs), _standardised(targets[:, None]), 0)


def _shipped(name: str) -> Path:
    """A data file of scikit-learn, found without its import, which takes a second."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        text = "the demo's data come with scikit-learn, which is not installed"
        raise FileNotFoundError(f"{text}: pip install 'loadmaster[demo]'")
    return Path(package.origin).parent / "datasets" / "data" / name


def _standardised(values: Array) -> Array:
    standardised: Array = (values - values.mean(axis=0)) / values.std(axis=0)
    return standardised


class Batches:
    """Shuffled batches of equal size; their order depends on seed and epoch only."""

    def __init__(self, data: Dataset, batch_size: int, seed: int) -> None:
        if not 1 <= batch_size <= len(data.inputs):
            limits = f"between 1 and {len(data.inputs)}, the number of samples"
            raise ValueError(f"the batch size must lie {limits}, not {batch_size}")
        self._data, self._batch_size = data, batch_size
        self._seed, self._epoch = seed, 0

    def __len__(self) -> int:
        return len(self._data.inputs) // self._batch_size

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        order = np.random.default_rng([self._seed, self._epoch]).permutation(len(self._data.inputs))
        for start in range(0, len(self) * self._batch_size, self._batch_size):
            chosen = order[start : start + self._batch_size]
            yield self._data.inputs[chosen], self._data.targets[chosen]


class Trainer:
    """Trains by Adam (Kingma and Ba 2015, algorithm 1) with noise; state can be saved."""

    def __init__(self, network: Network, learning_rate: float, seed: int) -> None:
        self.network = network
        self._learning_rate = learning_rate
        self._random = np.random.default_rng(seed)
        self._steps = 0
        self._mean = {name: np.zeros_like(value) for name, value in network.parameters.items()}
        self._square = {name: np.zeros_like(value) for name, value in network.parameters.items()}

    def step(self, inputs: Array, targets: Array) -> float:
        """One step of Adam; returns the batch's mean loss before it."""
        noisy = inputs + NOISE * self._random.standard_normal(inputs.shape)
        loss, gradients = self.network.loss_and_gradients(noisy, targets)
        self._steps += 1
        first, second = (1 - decay**self._steps for decay in ADAM_DECAY)
        rate = self._learning_rate * np.sqrt(second) / first
        for name, gradient in gradients.items():
            mean, square = self._mean[name], self._square[name]
            mean += (1 - ADAM_DECAY[0]) * (gradient - mean)
            square += (1 - ADAM_DECAY[1]) * (gradient**2 - square)
            self.network.parameters[name] -= rate * mean / (np.sqrt(square) + ADAM_EPSILON)
        return loss

    @property
    def steps(self) -> int:
        """Steps done, over every launch."""
        return self._steps

    def save(self, path: Path) -> None:
        """Write parameters, optimiser and random generator to the file."""
        arrays = {
            f"{group}.{name}": value
            for group, values in self._groups().items()
            for name, value in values.items()
        }
        state = json.dumps({"steps": self._steps, "random": self._random.bit_generator.state})
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, state=np.array(state), **arrays)

    def load(self, path: Path) -> None:
        """Go on exactly where `save` was called."""
        with np.load(path, allow_pickle=False) as arrays:
            state = json.loads(str(arrays["state"]))
            for group, values in self._groups().items():
                for name, value in values.items():
                    value[...] = arrays[f"{group}.{name}"]
        self._steps = state["steps"]
        self._random.bit_generator.state = state["random"]

    def _groups(self) -> Mapping[str, Parameters]:
        return {"parameter": self.network.parameters, "mean": self._mean, "square": self._square}


def train(network: Network, data: Dataset, options: argparse.Namespace) -> None:
    """The whole training loop of a program."""
    trainer = Trainer(network, options.learning_rate, options.seed)
    batches = Batches(data, options.batch_size, options.seed)
    for inputs, targets in training.steps(
        batches, save=trainer.save, load=trainer.load, total=options.steps
    ):
        loss = trainer.step(inputs, targets)
        training.report(loss=loss)
        if trainer.steps % SAY_EVERY == 0:
            # without flush it would come in large pieces into a file
            print(f"step {trainer.steps}: loss {loss:.4f}", flush=True)


def options_parser(program: str, description: str) -> argparse.ArgumentParser:
    """The options that all programs have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m loadmaster.demo.{program}", description=description
    )
    parser.add_argument("--batch-size", type=int, default=64, help="samples in a step")
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=1)
    text = "number of steps; an agent overrides it by LOADMASTER_STEPS"
    parser.add_argument("--steps", type=int, default=300, help=text)
    return parser


def cross_entropy(scores: Array, targets: Array) -> tuple[float, Array]:
    """Mean cross-entropy of softmax scores (n, classes) for classes (n,), and gradient."""
    rows, classes = np.arange(len(scores)), targets.astype(np.intp)
    shifted = scores - scores.max(axis=1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    gradient = np.exp(logarithms)
    gradient[rows, classes] -= 1.0
    return float(-logarithms[rows, classes].mean()), gradient / len(scores)


def mean_square(values: Array, targets: Array) -> tuple[float, Array]:
    """Mean squared error of values (n, 1), and its gradient by the values."""
    difference = values - targets
    return float((difference**2).mean()), 2.0 * difference / difference.size


def weights(random: np.random.Generator, inputs: int, outputs: int) -> Array:
    """A matrix (inputs, outputs) of variance 2 / inputs (He et al. 2015)."""
    return random.standard_normal((inputs, outputs)) * float(np.sqrt(2.0 / inputs))
