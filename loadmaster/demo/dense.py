"""A dense network with two hidden layers, for breast-cancer or diabetes data."""

from collections.abc import Sequence

import numpy as np

from loadmaster.demo import common
from loadmaster.demo.common import Array, Parameters

DATA = {"breast-cancer": common.breast_cancer, "diabetes": common.diabetes}


class DenseNet:
    """Features (n, inputs) -> two layers of `hidden` units -> scores or values."""

    def __init__(self, inputs: int, hidden: int, classes: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._loss = common.cross_entropy if classes else common.mean_square
        outputs = classes or 1
        self.parameters: Parameters = {
            "first": common.weights(random, inputs, hidden),
            "first_bias": np.zeros(hidden),
            "second": common.weights(random, hidden, hidden),
            "second_bias": np.zeros(hidden),
            "last": common.weights(random, hidden, outputs) * 0.1,
            "last_bias": np.zeros(outputs),
        }

    def loss_and_gradients(self, inputs: Array, targets: Array) -> tuple[float, Parameters]:
        p = self.parameters
        first = np.maximum(inputs @ p["first"] + p["first_bias"], 0.0)
        second = np.maximum(first @ p["second"] + p["second_bias"], 0.0)
        loss, by_last = self._loss(second @ p["last"] + p["last_bias"], targets)
        by_second = (by_last @ p["last"].T) * (second > 0.0)
        by_first = (by_second @ p["second"].T) * (first > 0.0)
        return loss, {
            "first": inputs.T @ by_first,
            "first_bias": by_first.sum(axis=0),
            "second": first.T @ by_second,
            "second_bias": by_second.sum(axis=0),
            "last": second.T @ by_last,
            "last_bias": by_last.sum(axis=0),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common.options_parser("dense", __doc__)
    parser.add_argument("--data", choices=sorted(DATA), default="breast-cancer")
    parser.add_argument("--hidden", type=int, default=32, help="units of a hidden layer")
    options = parser.parse_args(arguments)
    data = DATA[options.data]()
    network = DenseNet(data.inputs.shape[1], options.hidden, data.classes, options.seed)
    common.train(network, data, options)


if __name__ == "__main__":
    main()
