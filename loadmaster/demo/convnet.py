"""A small convolutional network on handwritten digits."""

from collections.abc import Sequence

import numpy as np

from loadmaster.demo import common
from loadmaster.demo.common import Array, Parameters

SIDE = 8
KERNEL = 3
POOL = 2
MAP = SIDE - KERNEL + 1
POOLED = MAP // POOL


class ConvNet:
    """Images (n, 64) -> `filters` maps of 6 x 6 -> maxima 3 x 3 -> scores (n, classes)."""

    def __init__(self, filters: int, classes: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.parameters: Parameters = {
            "kernel": common.weights(random, KERNEL * KERNEL, filters),
            "kernel_bias": np.zeros(filters),
            "dense": common.weights(random, POOLED * POOLED * filters, classes),
            "dense_bias": np.zeros(classes),
        }

    def loss_and_gradients(self, inputs: Array, targets: Array) -> tuple[float, Parameters]:
        p, n = self.parameters, len(inputs)
        windows = np.lib.stride_tricks.sliding_window_view(
            inputs.reshape(n, SIDE, SIDE), (KERNEL, KERNEL), axis=(1, 2)
        )
        patches = windows.reshape(n * MAP * MAP, KERNEL * KERNEL)
        maps = patches @ p["kernel"] + p["kernel_bias"]
        # (n, pooled row, row in the pool, pooled column, column in the pool, filter)
        blocks = np.maximum(maps, 0.0).reshape(n, POOLED, POOL, POOLED, POOL, -1)
        maxima = blocks.max(axis=(2, 4), keepdims=True)
        flat = maxima.reshape(n, -1)
        loss, by_scores = common.cross_entropy(flat @ p["dense"] + p["dense_bias"], targets)
        by_maxima = (by_scores @ p["dense"].T).reshape(maxima.shape)
        by_maps = (by_maxima * ((blocks == maxima) & (blocks > 0.0))).reshape(maps.shape)
        return loss, {
            "kernel": patches.T @ by_maps,
            "kernel_bias": by_maps.sum(axis=0),
            "dense": flat.T @ by_scores,
            "dense_bias": by_scores.sum(axis=0),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common.options_parser("convnet", __doc__)
    parser.add_argument("--hidden", type=int, default=16, help="filters of the convolution")
    options = parser.parse_args(arguments)
    data = common.digits()
    common.train(ConvNet(options.hidden, data.classes, options.seed), data, options)


if __name__ == "__main__":
    main()
