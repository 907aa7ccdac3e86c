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
        """Return the mean loss of these images, and its gradient by each parameter."""
        # 1. Forward: the state after the last row gives the scores.
        trace = Trace()
        dense = self.parameters["dense"]
        state = self._forward(inputs.reshape(len(inputs), ROWS, -1), trace)
        scores = state @ dense + self.parameters["dense_bias"]

        # 2. Backward; `by_x` is the gradient of the loss by x.
        loss, by_scores = common.cross_entropy(scores, targets)
        gates, gates_bias = self._backward(by_scores @ dense.T, trace)
        return loss, {
            "gates": gates,
            "gates_bias": gates_bias,
            "dense": state.T @ by_scores,
            "dense_bias": by_scores.sum(axis=0),
        }

    def _forward(self, sequences: Array, trace: Trace) -> Array:
        """Return the state h after the last row, and append the values of each row to `trace`."""
        state = np.zeros((len(sequences), self.hidden))
        cell = np.zeros((len(sequences), self.hidden))
        for row in range(ROWS):
            joined = np.concatenate([sequences[:, row], state], axis=1)
            z = joined @ self.parameters["gates"] + self.parameters["gates_bias"]
            gates = 0.5 + 0.5 * np.tanh(0.5 * z[:, : 3 * self.hidden])  # the sigmoid s
            input_gate, forget_gate, output_gate = np.split(gates, 3, axis=1)
            candidate = np.tanh(z[:, 3 * self.hidden :])
            old_cell = cell
            cell = forget_gate * old_cell + input_gate * candidate
            output = np.tanh(cell)
            state = output_gate * output
            row_values = (joined, input_gate, forget_gate, output_gate, candidate, old_cell, output)
            trace.append(row_values)
        return state

    def _backward(self, by_state: Array, trace: Trace) -> tuple[Array, Array]:
        """Return the gradients by the weights and the bias of the gates.

        `by_state`: by the state after the last row.
        """
        by_weights = np.zeros_like(self.parameters["gates"])
        by_bias = np.zeros_like(self.parameters["gates_bias"])
        by_cell = np.zeros_like(by_state)
        for row_values in reversed(trace):
            joined, input_gate, forget_gate, output_gate, candidate, old_cell, output = row_values
            by_cell = by_cell + by_state * output_gate * (1.0 - output**2)
            by_input = by_cell * candidate * input_gate * (1.0 - input_gate)
            by_forget = by_cell * old_cell * forget_gate * (1.0 - forget_gate)
            by_output = by_state * output * output_gate * (1.0 - output_gate)
            by_candidate = by_cell * input_gate * (1.0 - candidate**2)
            by_z = np.concatenate([by_input, by_forget, by_output, by_candidate], axis=1)
            by_weights += joined.T @ by_z
            by_bias += by_z.sum(axis=0)
            by_state = by_z @ self.parameters["gates"][-self.hidden :].T
            by_cell = by_cell * forget_gate
        return by_weights, by_bias


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the network as the command line says."""
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
