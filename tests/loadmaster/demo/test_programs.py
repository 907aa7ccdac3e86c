"""The demo's programs: right gradients, losses that fall, and runs that resume to the very same
bits.
"""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

from loadmaster.demo.common import (
    Array,
    Batches,
    Dataset,
    Network,
    Trainer,
    breast_cancer,
    cross_entropy,
    diabetes,
    digits,
    mean_square,
)
from loadmaster.demo.convnet import ConvNet
from loadmaster.demo.dense import DenseNet
from loadmaster.demo.recurrent import Lstm
from tests.builders_training import Launches, end_of, start, until

STEP = 1e-6


def sample(classes: int, features: int, count: int = 5) -> tuple[Array, Array]:
    random = np.random.default_rng(7)
    targets = (
        random.integers(classes, size=count).astype(float)
        if classes
        else random.standard_normal((count, 1))
    )
    return random.standard_normal((count, features)), targets


NETWORKS: dict[str, tuple[Callable[[], Network], tuple[Array, Array]]] = {
    "convolutional": (lambda: ConvNet(3, 10, seed=2), sample(10, 64)),
    "recurrent": (lambda: Lstm(4, 10, seed=2), sample(10, 64)),
    "dense, classes": (lambda: DenseNet(6, 5, 2, seed=2), sample(2, 6)),
    "dense, values": (lambda: DenseNet(6, 5, 0, seed=2), sample(0, 6)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_gradient_is_the_slope_of_the_loss(name: str) -> None:
    make, (inputs, targets) = NETWORKS[name]
    network = make()
    _, gradients = network.loss_and_gradients(inputs, targets)
    assert gradients.keys() == network.parameters.keys()
    random = np.random.default_rng(3)
    for parameter, value in network.parameters.items():
        assert gradients[parameter].shape == value.shape
        for flat in random.choice(value.size, size=min(value.size, 12), replace=False):
            index = np.unravel_index(flat, value.shape)
            middle = value[index]
            value[index] = middle + STEP
            above, _ = network.loss_and_gradients(inputs, targets)
            value[index] = middle - STEP
            below, _ = network.loss_and_gradients(inputs, targets)
            value[index] = middle
            assert gradients[parameter][index] == pytest.approx(
                (above - below) / (2 * STEP), rel=1e-4, abs=1e-7
            ), (
                parameter,
                index,
            )


def test_the_losses_are_what_their_formulas_say() -> None:
    loss, _ = cross_entropy(np.log(np.array([[0.25, 0.75], [0.5, 0.5]])), np.array([1.0, 0.0]))
    assert loss == pytest.approx(-(np.log(0.75) + np.log(0.5)) / 2)
    assert mean_square(np.array([[1.0], [3.0]]), np.array([[0.0], [1.0]]))[0] == pytest.approx(2.5)


def test_huge_scores_do_not_overflow() -> None:
    loss, gradient = cross_entropy(np.array([[1e4, 0.0]]), np.array([1.0]))
    assert loss == pytest.approx(1e4)
    assert gradient.tolist() == [[1.0, -1.0]]


def test_the_data_are_those_of_scikit_learn() -> None:
    inputs, targets = load_digits(return_X_y=True)
    assert np.array_equal(digits().inputs * 16.0, inputs)
    assert np.array_equal(digits().targets, targets)
    inputs, targets = load_breast_cancer(return_X_y=True)
    assert np.allclose(breast_cancer().inputs, (inputs - inputs.mean(axis=0)) / inputs.std(axis=0))
    assert np.array_equal(breast_cancer().targets, targets)
    inputs, targets = load_diabetes(return_X_y=True, scaled=False)
    assert np.allclose(diabetes().inputs, (inputs - inputs.mean(axis=0)) / inputs.std(axis=0))
    assert np.allclose(diabetes().targets[:, 0], (targets - targets.mean()) / targets.std())


def test_missing_data_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.demo.common.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"pip install 'loadmaster\[demo\]'"):
        digits()


def test_an_epoch_has_every_sample_at_most_once_and_its_order_depends_on_seed_and_epoch_alone() -> (
    None
):
    data = Dataset(np.arange(10.0)[:, None], np.arange(10.0), 10)
    first, second = Batches(data, 3, seed=1), Batches(data, 3, seed=1)
    for batches in (first, second):
        batches.set_epoch(4)
    used = np.concatenate([targets for _, targets in first])
    assert len(first) == 3
    assert len(set(used)) == 9
    assert np.array_equal(used, np.concatenate([targets for _, targets in second]))
    second.set_epoch(5)
    assert not np.array_equal(used, np.concatenate([targets for _, targets in second]))


@pytest.mark.parametrize("size", [0, 11])
def test_a_batch_size_that_the_data_cannot_serve_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 10"):
        Batches(Dataset(np.zeros((10, 1)), np.zeros(10), 2), size, seed=1)


TRAINERS: dict[str, tuple[Callable[[int], Network], Callable[[], Dataset], float, float]] = {
    "convolutional": (lambda seed: ConvNet(16, 10, seed), digits, 0.003, 0.3),
    "recurrent, small": (lambda seed: Lstm(20, 10, seed), digits, 0.01, 0.4),
    "recurrent, big": (lambda seed: Lstm(40, 10, seed), digits, 0.01, 0.3),
    "dense, breast cancer": (lambda seed: DenseNet(30, 32, 2, seed), breast_cancer, 0.003, 0.3),
    "dense, diabetes": (lambda seed: DenseNet(10, 32, 0, seed), diabetes, 0.003, 0.8),
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", TRAINERS)
def test_the_loss_falls_in_150_steps(name: str, seed: int) -> None:
    make, load, rate, falls_to = TRAINERS[name]
    trainer, batches = Trainer(make(seed), rate, seed), Batches(load(), 64, seed)
    losses: list[float] = []
    for epoch in range(150):
        batches.set_epoch(epoch)
        losses += [trainer.step(*batch) for batch in islice(batches, 150 - len(losses))]
    assert np.mean(losses[-10:]) < falls_to * losses[0]


def test_a_trainer_goes_on_to_the_very_same_bits(tmp_path: Path) -> None:
    batches = list(Batches(breast_cancer(), 64, seed=1))
    whole, first, second = (
        Trainer(DenseNet(30, 8, 2, seed=1), 0.003, seed=seed) for seed in (1, 1, 9)
    )
    expected = [whole.step(*batch) for batch in batches]
    for batch in batches[:3]:
        first.step(*batch)
    first.save(tmp_path / "saved")
    second.load(tmp_path / "saved")
    assert [second.step(*batch) for batch in batches[3:]] == expected[3:]
    for name, value in whole.network.parameters.items():
        assert np.array_equal(value, second.network.parameters[name])


@pytest.mark.parametrize(
    "command",
    [
        ("convnet", "--batch-size", "32", "--hidden", "4"),
        ("recurrent", "--batch-size", "32", "--size", "small"),
        ("dense", "--batch-size", "64", "--data", "diabetes"),
    ],
    ids=lambda command: str(command[0]),
)
def test_a_preempted_program_ends_with_the_same_checkpoint_as_one_that_was_left_alone(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    def run(name: str, **environ: str) -> Launches:
        launches = Launches(tmp_path / name, steps=24)
        program, *options = command
        process = launches.start("-m", f"loadmaster.demo.{program}", *options, **environ)
        if environ:
            until(lambda: launches.events("progress"), "the first step")
            launches.write_term(stop=True)
            assert end_of(process)[0] == 75
            process = launches.start("-m", f"loadmaster.demo.{program}", *options)
        assert end_of(process) == (0, "")
        return launches

    alone, stopped = run("alone"), run("stopped", LOADMASTER_EMULATED_STEP_S="0.2")
    assert alone.fence < stopped.fence
    first, last = alone.events("progress")[0]["loss"], alone.events("progress")[-1]["loss"]
    assert isinstance(first, float)
    assert isinstance(last, float)
    assert last < first
    assert stopped.events("end")[0]["loss"] == last
    assert digest_of_last(stopped) == digest_of_last(alone)


def digest_of_last(launches: Launches) -> object:
    checkpoints = launches.manifest()["checkpoints"]
    assert isinstance(checkpoints, list)
    return checkpoints[-1]["sha256"]


@pytest.mark.parametrize("program", ["convnet", "recurrent", "dense"])
def test_a_program_explains_its_options(program: str) -> None:
    process = start("-m", f"loadmaster.demo.{program}", "--help")
    assert end_of(process)[0] == 0
