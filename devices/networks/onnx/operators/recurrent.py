"""ONNX's RNN, GRU and LSTM, unrolled: one product of the inputs with the weights for all steps, then the steps one by
one.

The formulas are those of the operators' definitions in ONNX. *Gates* are all gates of a step, side by side: (batch,
gates times hidden size).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from devices.networks.onnx.nodes import Array, NodeWriter, OnnxNode, UnknownValueError

MOST_STEPS = 2048
"""Most steps times directions: more would be too many operators."""

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_ACTIVATIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_OPERATORS = {
    name.lower(): name
    for name in (
        "Relu",
        "Tanh",
        "Sigmoid",
        "Softsign",
        "Softplus",
        "HardSigmoid",
        "LeakyRelu",
        "ThresholdedRelu",
        "Elu",
    )
}
_WITH_ALPHA = ("hardsigmoid", "leakyrelu", "thresholdedrelu", "elu")

Activation = Callable[[str], str]
Step = Callable[[str, str, tuple[str, ...]], tuple[str, ...]]
"""Takes a step's row of the inputs' product, the recurrent weights and the states. Returns the new states, the output
first."""


@dataclass(frozen=True)
class _Direction:
    """One direction of a node: its own inputs, and its step."""

    steps: Sequence[int]
    states: tuple[str, ...]
    inputs: str
    weights: str
    step: Step


def recurrent(node: OnnxNode, write: NodeWriter) -> list[str]:
    """Return the outputs of a node of type RNN, GRU or LSTM: Y, Y_h and, of LSTM, Y_c."""
    batch_first = bool(node.attributes.get("layout", 0))
    data = write("Transpose", node.input(0), perm=[1, 0, 2]) if batch_first else node.input(0)
    first, second, _ = node.shape(0)
    steps, batch = (second, first) if batch_first else (first, second)
    directions, _, hidden = node.shape(2)
    if steps * directions > MOST_STEPS or node.attributes.get("input_forget", 0):
        raise UnknownValueError
    lengths = write.reshape(write.cast(node.input(4), node.type(0)), [batch, 1]) if node.has(4) else ""
    all_outputs, all_states = [], []
    for at in range(directions):
        direction = _direction(node, write, at, data, batch_first)
        states = direction.states
        outputs = [""] * steps
        for step in direction.steps:
            row = write.reshape(write.take(direction.inputs, step, step + 1, 0), [batch, -1])
            new = direction.step(row, direction.weights, states)
            output = new[0]
            if lengths:  # after a sequence's end its state stays, and its output is zero
                inside = write("Greater", lengths, np.asarray(step, node.dtype(0)))
                new = tuple(write("Where", inside, one, old) for one, old in zip(new, states, strict=True))
                output = write("Where", inside, output, np.zeros((), node.dtype(0)))
            states = new
            outputs[step] = write.reshape(output, [batch, 1, 1, hidden] if batch_first else [1, 1, batch, hidden])
        all_outputs.append(write("Concat", *outputs, axis=1 if batch_first else 0))
        shape = [batch, 1, hidden] if batch_first else [1, batch, hidden]
        all_states.append([write.reshape(state, shape) for state in states])
    joined = write("Concat", *all_outputs, axis=2 if batch_first else 1)
    ends = [write("Concat", *states, axis=1 if batch_first else 0) for states in zip(*all_states, strict=True)]
    return [joined, *ends]


def _direction(node: OnnxNode, write: NodeWriter, at: int, data: str, batch_first: bool) -> _Direction:
    kind, dtype = node.proto.op_type, node.dtype(0)
    gates = _GATES[kind]
    _, _, hidden = node.shape(2)
    batch, steps = (node.shape(0)[0], node.shape(0)[1]) if batch_first else (node.shape(0)[1], node.shape(0)[0])

    def own(position: int, shape: list[int]) -> str:
        return write.reshape(write.take(node.input(position), at, at + 1, 0), shape)

    def transposed(position: int) -> str:
        return write("Transpose", own(position, list(node.shape(position)[1:])), perm=[1, 0])

    def state(position: int) -> str:
        if not node.has(position):
            return write.constant(np.zeros((batch, hidden), dtype))
        return write.reshape(write.take(node.input(position), at, at + 1, 1 if batch_first else 0), [batch, hidden])

    biases = [write.constant(np.zeros(gates * hidden, dtype))] * 2
    if node.has(3):
        both = own(3, [2 * gates * hidden])
        biases = [write.take(both, n * gates * hidden, (n + 1) * gates * hidden, 0) for n in range(2)]
    functions = [_activation(node, write, at, n) for n in range(len(_ACTIVATIONS[kind]))]
    clip = _clip(node, write)
    ours, theirs = biases
    if kind == "GRU":
        step = _gru_step(node, write, functions, clip, theirs)
        whole = write("Add", write("MatMul", data, transposed(1)), ours)
    else:
        whole = write("Add", write("MatMul", data, transposed(1)), write("Add", ours, theirs))
        peepholes = own(7, [3 * hidden]) if kind == "LSTM" and node.has(7) else ""
        step = (
            _lstm_step(hidden, write, functions, clip, peepholes)
            if kind == "LSTM"
            else _rnn_step(write, functions, clip)
        )
    backwards = node.attributes["direction"] == "reverse" or at == 1
    states = (state(5), state(6)) if kind == "LSTM" else (state(5),)
    order = range(steps - 1, -1, -1) if backwards else range(steps)
    return _Direction(order, states, whole, transposed(2), step)


def _rnn_step(write: NodeWriter, functions: list[Activation], clip: Activation) -> Step:
    def step(row: str, weights: str, states: tuple[str, ...]) -> tuple[str, ...]:
        return (functions[0](clip(write("Add", row, write("MatMul", states[0], weights)))),)

    return step


def _lstm_step(hidden: int, write: NodeWriter, functions: list[Activation], clip: Activation, peepholes: str) -> Step:
    """Return the step of an LSTM. Gates in ONNX's order: input, output, forget, cell. Peepholes: input, output,
    forget."""
    f, g, h = functions

    def step(row: str, weights: str, states: tuple[str, ...]) -> tuple[str, ...]:
        state, cell = states
        gates = write("Add", row, write("MatMul", state, weights))

        def gate(at: int, seen: str) -> str:
            own = write.take(gates, at * hidden, (at + 1) * hidden, 1)
            if peepholes and seen:
                weight = write.take(peepholes, at * hidden, (at + 1) * hidden, 0)
                own = write("Add", own, write("Mul", weight, seen))
            return clip(own)

        kept = write("Mul", f(gate(2, cell)), cell)
        new_cell = write("Add", kept, write("Mul", f(gate(0, cell)), g(gate(3, ""))))
        return write("Mul", f(gate(1, new_cell)), h(new_cell)), new_cell

    return step


def _gru_step(node: OnnxNode, write: NodeWriter, functions: list[Activation], clip: Activation, biases: str) -> Step:
    """Return the step of a GRU. Gates in ONNX's order: update, reset, hidden. ``biases``: the biases of the
    recurrence."""
    _, _, hidden = node.shape(2)
    f, g = functions
    reset_after = bool(node.attributes["linear_before_reset"])

    def columns(value: str, begin: int, end: int) -> str:
        return write.take(value, begin * hidden, end * hidden, 1)

    first_biases, last_biases = write.take(biases, 0, 2 * hidden, 0), write.take(biases, 2 * hidden, 3 * hidden, 0)

    def step(row: str, weights: str, states: tuple[str, ...]) -> tuple[str, ...]:
        [state] = states
        if reset_after:
            product = write("Add", write("MatMul", state, weights), biases)
            gates = f(clip(write("Add", columns(row, 0, 2), columns(product, 0, 2))))
        else:
            product = write("Add", write("MatMul", state, columns(weights, 0, 2)), first_biases)
            gates = f(clip(write("Add", columns(row, 0, 2), product)))
        update, reset = columns(gates, 0, 1), columns(gates, 1, 2)
        if reset_after:
            recurrence = write("Mul", reset, columns(product, 2, 3))
        else:
            recurrence = write("Add", write("MatMul", write("Mul", reset, state), columns(weights, 2, 3)), last_biases)
        proposed = g(clip(write("Add", columns(row, 2, 3), recurrence)))
        one = np.ones((), node.dtype(0))
        return (write("Add", write("Mul", write("Sub", one, update), proposed), write("Mul", update, state)),)

    return step


def _clip(node: OnnxNode, write: NodeWriter) -> Activation:
    limit = node.attributes.get("clip")
    if limit is None:
        return lambda value: value
    high: Array = np.asarray(limit, node.dtype(0))
    return lambda value: write("Max", write("Min", value, high), -high)


def _activation(node: OnnxNode, write: NodeWriter, direction: int, at: int) -> Activation:
    """Return the function ``at`` of a direction. Raises :class:`UnknownValueError` for a function that is not one of
    ONNX's."""
    kind = node.proto.op_type
    each = len(_ACTIVATIONS[kind])
    names = node.attributes.get("activations") or []
    position = direction * each + at
    name = (names[position] if position < len(names) else _ACTIVATIONS[kind][at]).lower()
    given = {}
    for attribute in ("alpha", "beta"):
        values = node.attributes.get(f"activation_{attribute}") or []
        if values and len(values) != len(names):
            raise UnknownValueError  # ONNX does not define which function they belong to
        if values:
            given[attribute] = float(values[position])
    if name in ("affine", "scaledtanh"):
        scale, shift = (np.asarray(given.get(key, other), node.dtype(0)) for key, other in (("alpha", 1), ("beta", 0)))
        if name == "affine":
            return lambda value: write("Add", write("Mul", value, scale), shift)
        return lambda value: write("Mul", write("Tanh", write("Mul", value, shift)), scale)
    if name not in _OPERATORS:
        raise UnknownValueError
    if name == "hardsigmoid":
        return lambda value: write(_OPERATORS[name], value, **{"alpha": 0.2, "beta": 0.5, **given})
    settings = {"alpha": given["alpha"]} if name in _WITH_ALPHA and "alpha" in given else {}
    return lambda value: write(_OPERATORS[name], value, **settings)
