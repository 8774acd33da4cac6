"""Recurrent layers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tests.helpers.onnx_forms.form import LATEST, Array, Form, data

_STEPS, _BATCH, _WIDTH, _HIDDEN = 3, 2, 4, 5


def _recurrent_form(
    operator: str,
    gates: int,
    attributes: dict[str, Any],
    ways: int = 1,
    more: tuple[Array | None, ...] = (),
    layout: int = 0,
) -> Form:
    x = data(_BATCH, _STEPS, _WIDTH) if layout else data(_STEPS, _BATCH, _WIDTH)
    weights = (data(ways, gates * _HIDDEN, _WIDTH) / 2, data(ways, gates * _HIDDEN, _HIDDEN) / 2)
    given = {"hidden_size": _HIDDEN, **attributes, **({"layout": 1} if layout else {})}
    constants = (*weights, data(ways, 2 * gates * _HIDDEN), *more)
    return Form(operator, (x,), given, LATEST, constants, 3 if operator == "LSTM" else 2)


def recurrent() -> list[Form]:
    forms: list[Form] = []
    for operator, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        form = functools.partial(_recurrent_form, operator, gates)
        lengths = np.int32([3, 1])
        first = [data(1, _BATCH, _HIDDEN) / 2 for _ in range(2 if operator == "LSTM" else 1)]
        acts = {"RNN": ["Relu"], "GRU": ["HardSigmoid", "Softsign"], "LSTM": ["HardSigmoid", "Softsign", "Relu"]}[
            operator
        ]
        forms += [
            form({}), form({"direction": "reverse"}), form({"direction": "bidirectional"}, 2), form({"clip": 0.3}),
            form({"activations": acts}), form({}, 1, (lengths,)), form({"direction": "reverse"}, 1, (lengths,)),
            form({}, 1, (None, *first)),
            form({"activations": ["LeakyRelu", *acts[1:]], "activation_alpha": [0.3]}),
            form({"activations": ["HardSigmoid", *acts[1:]], "activation_alpha": [0.3], "activation_beta": [0.4]}),
            form({}, layout=1),
        ]  # fmt: skip
        if operator == "GRU":
            forms.append(form({"linear_before_reset": 1}))
        if operator == "LSTM":
            forms += [form({"input_forget": 1}), form({}, 1, (None, *first, data(1, 3 * _HIDDEN) / 2))]
    return forms
