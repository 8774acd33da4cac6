"""Small recurrent networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo.catalogue import Example, Make


class _Sequence(nn.Module):
    """Embedded tokens through a recurrent layer; the last step's output through a linear one, and the last state."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, layer.input_size)
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), 5)

    def forward(self, tokens: Tensor) -> tuple[Tensor, object]:
        steps, state = self.layer(self.embedding(tokens))
        return self.head(steps[:, -1]), state


def _tokens(layer: nn.RNNBase, steps: int = 12) -> Example:
    return _Sequence(layer), (torch.randint(0, 50, (2, steps)),)


class _Stepwise(nn.Module):
    """Cells in a loop that the exporter unrolls, with the state as input and output."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(8, width), nn.GRUCell(width, width)

    def forward(self, data: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outputs, upper = [], state
        for step in data.unbind(1):
            state, memory = self.lstm(step, (state, memory))
            upper = self.gru(state, upper)
            outputs.append(upper)
        return torch.stack(outputs, 1), state, memory


class _ConvGRU(nn.Module):
    """A recurrent layer over images, as RAFT has it: one step."""

    def __init__(self, hidden: int = 8, inputs: int = 4) -> None:
        super().__init__()
        self.gates = nn.Conv2d(hidden + inputs, 2 * hidden, 3, padding=1)
        self.candidate = nn.Conv2d(hidden + inputs, hidden, 3, padding=1)

    def forward(self, state: Tensor, data: Tensor) -> Tensor:
        update, reset = torch.sigmoid(self.gates(torch.cat([state, data], 1))).chunk(2, 1)
        candidate = torch.tanh(self.candidate(torch.cat([reset * state, data], 1)))
        return (1 - update) * state + update * candidate


NETWORKS: dict[str, Make] = {
    "lstm": lambda: _tokens(nn.LSTM(16, 24, batch_first=True)),
    "lstm_both_ways": lambda: _tokens(nn.LSTM(16, 12, num_layers=2, batch_first=True, bidirectional=True), 6),
    "gru": lambda: _tokens(nn.GRU(16, 24, batch_first=True)),
    "gru_both_ways": lambda: _tokens(nn.GRU(16, 12, num_layers=2, batch_first=True, bidirectional=True), 6),
    "rnn": lambda: _tokens(nn.RNN(16, 24, nonlinearity="relu", batch_first=True)),
    "cells": lambda: (_Stepwise(), (torch.randn(2, 5, 8), torch.randn(2, 16), torch.randn(2, 16))),
    "conv_gru": lambda: (_ConvGRU(), (torch.randn(1, 8, 10, 12), torch.randn(1, 4, 10, 12))),
}
