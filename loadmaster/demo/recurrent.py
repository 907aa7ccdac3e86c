"""A recurrent network (LSTM) on handwritten digits, read row by row as sequences of eight steps."""

from collections.abc import Sequence

import numpy as np

from loadmaster.demo import common
from loadmaster.demo.common import Array, Parameters

ROWS = 8
SIZES = {"small": 20, "big": 40}
FORGET_BIAS = 1.0
Trace = list[tuple[Array, ...]]
"""Values of the forward pass that the backward pass needs, by row."""


class Lstm:
    """Sequences (n, 64) as 8 rows of 8 -> LSTM (Hochreiter and Schmidhuber 1997) -> scores.

    With z = [x, h] W + b cut into i, f, o, g:  c' = s(f) c + s(i) tanh(g),  h' = s(o) tanh(c').
    """

    def __init__(self, hidden: int, classes: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.hidden = hidden
        bias = np.zeros(4 * hidden)
        bias[hidden : 2 * hidden] = FORGET_BIAS
        self.parameters: Parameters = {
            "gates": common.weights(random, ROWS + hidden, 4 * hidden) / np.sqrt(2.0),
            "gates_bias": bias,
            "dense": common.weights(random, hidden, classes),
            "dense_bias": np.zeros(classes),
        }

    def loss_and_gradients(self, inputs: Array, targets: Array) -> tuple[float, Parameters]:
        p, trace = self.parameters, Trace()
        state = self._forward(inputs.reshape(len(inputs), ROWS, -1), trace)
        loss, by_scores = common.cross_entropy(state @ p["dense"] + p["dense_bias"], targets)
        gates, gates_bias = self._backward(by_scores @ p["dense"].T, trace)
        return loss, {
            "gates": gates,
            "gates_bias": gates_bias,
            "dense": state.T @ by_scores,
            "dense_bias": by_scores.sum(axis=0),
        }

    def _forward(self, sequences: Array, trace: Trace) -> Array:
        state = cell = np.zeros((len(sequences), self.hidden))
        for row in range(ROWS):
            joined = np.concatenate([sequences[:, row], state], axis=1)
            z = joined @ self.parameters["gates"] + self.parameters["gates_bias"]
            opened = 0.5 + 0.5 * np.tanh(0.5 * z[:, : 3 * self.hidden])
            taken, kept, shown = np.split(opened, 3, axis=1)
            new = np.tanh(z[:, 3 * self.hidden :])
            before, cell = cell, kept * cell + taken * new
            seen = np.tanh(cell)
            state = shown * seen
            trace.append((joined, taken, kept, shown, new, before, seen))
        return state

    def _backward(self, by_state: Array, trace: Trace) -> tuple[Array, Array]:
        by_weights = np.zeros_like(self.parameters["gates"])
        by_bias = np.zeros_like(self.parameters["gates_bias"])
        by_cell = np.zeros_like(by_state)
        for joined, taken, kept, shown, new, before, seen in reversed(trace):
            by_cell = by_cell + by_state * shown * (1.0 - seen**2)
            by_taken = by_cell * new * taken * (1.0 - taken)
            by_kept = by_cell * before * kept * (1.0 - kept)
            by_shown = by_state * seen * shown * (1.0 - shown)
            by_new = by_cell * taken * (1.0 - new**2)
            by_z = np.concatenate([by_taken, by_kept, by_shown, by_new], axis=1)
            by_weights += joined.T @ by_z
            by_bias += by_z.sum(axis=0)
            by_state = by_z @ self.parameters["gates"][-self.hidden :].T
            by_cell = by_cell * kept
        return by_weights, by_bias


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common.options_parser("recurrent", __doc__)
    parser.set_defaults(learning_rate=0.01)
    parser.add_argument(
        "--size", choices=sorted(SIZES), default="small", help=f"cells of the LSTM: {SIZES}"
    )
    options = parser.parse_args(arguments)
    data = common.digits()
    common.train(Lstm(SIZES[options.size], data.classes, options.seed), data, options)


if __name__ == "__main__":
    main()
