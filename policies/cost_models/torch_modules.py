"""The networks of the cost models, as PyTorch modules. Import this module only where a network is really needed.

Each takes the views that its model reads, as tensors with ``n`` candidates first, and returns scores ``(n,)``, larger
for faster. Rows of a view that are all 0 are absent: a program with fewer statements, loops or steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

HIDDEN = 256
DATAFLOW_HIDDEN = 64
DATAFLOW_WIDTH = 128
HEADS = 4


def present_rows(rows: Tensor) -> Tensor:
    """True for rows ``(n, r, c)`` that are present, ``(n, r)``."""
    return (rows != 0).any(dim=2)


class Residual(nn.Module):
    """``x + relu(W x + b)``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.linear(x))


class StatementBranch(nn.Module):
    """Statements ``(n, s, f)``: ``f -> 256 -> 256`` each, summed over those present, normalised, ``(n, 256)``."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(columns, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, statements: Tensor) -> Tensor:
        there = present_rows(statements)
        # Only the rows that are present are encoded: most programs have two or three statements.
        owner = torch.nonzero(there)[:, 0]
        encoded = self.encoder(statements[there])
        summed = torch.zeros(len(statements), HIDDEN, dtype=encoded.dtype).index_add_(0, owner, encoded)
        normal: Tensor = self.norm(summed)
        return normal


class DataflowBranch(nn.Module):
    """Steps ``(n, 10, 23)``: ``23 -> 64 -> 128`` each, 4-head self-attention with residual, summed over the steps
    present, ``(n, 128)``."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(columns, DATAFLOW_HIDDEN), nn.ReLU(), nn.Linear(DATAFLOW_HIDDEN, DATAFLOW_WIDTH), nn.ReLU()
        )
        self.attention = nn.MultiheadAttention(DATAFLOW_WIDTH, HEADS, batch_first=True)

    def forward(self, steps: Tensor) -> Tensor:
        there = present_rows(steps)
        encoded = self.encoder(steps)
        # No step attends to an absent one. A program that is not tiled has no steps at all: there nothing is masked,
        # because attention to no step would be NaN, and the sum below takes nothing of it.
        absent = ~there & there.any(dim=1, keepdim=True)
        attended, _ = self.attention(encoded, encoded, encoded, key_padding_mask=absent, need_weights=False)
        summed: Tensor = ((encoded + attended) * there[:, :, None]).sum(dim=1)
        return summed


class Pacm(nn.Module):
    """Pruner's pattern-aware cost model: both branches, concatenated, ``384 -> 256``, two residual layers, ``-> 1``."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        (_, statement_columns), (_, step_columns) = shapes
        self.statements = StatementBranch(statement_columns)
        self.dataflow = DataflowBranch(step_columns)
        self.join = nn.Linear(HIDDEN + DATAFLOW_WIDTH, HIDDEN)
        self.first, self.second = Residual(HIDDEN), Residual(HIDDEN)
        self.last = nn.Linear(HIDDEN, 1)

    def forward(self, statements: Tensor, dataflow: Tensor) -> Tensor:
        together = torch.cat([self.statements(statements), self.dataflow(dataflow)], dim=1)
        score: Tensor = self.last(self.second(self.first(torch.relu(self.join(together)))))
        return score[:, 0]
