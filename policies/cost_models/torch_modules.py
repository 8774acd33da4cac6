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
LOOP_WIDTH = 128
GRU_HIDDEN = 128
SLOTS = 8


def _there(rows: Tensor) -> Tensor:
    """Which rows ``(n, r, c)`` are present, ``(n, r)``."""
    return (rows != 0).any(dim=2)


class _Residual(nn.Module):
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
        there = _there(statements)
        # Only the rows that are there are encoded: most programs have two or three statements.
        owner = torch.nonzero(there)[:, 0]
        encoded = self.encoder(statements[there])
        summed = torch.zeros(len(statements), HIDDEN, dtype=encoded.dtype).index_add_(0, owner, encoded)
        normal: Tensor = self.norm(summed)
        return normal


class DataflowBranch(nn.Module):
    """Steps ``(n, 8, 23)``: ``23 -> 64 -> 128`` each, 4-head self-attention with residual, summed, ``(n, 128)``."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(columns, DATAFLOW_HIDDEN), nn.ReLU(), nn.Linear(DATAFLOW_HIDDEN, DATAFLOW_WIDTH), nn.ReLU()
        )
        self.attention = nn.MultiheadAttention(DATAFLOW_WIDTH, HEADS, batch_first=True)

    def forward(self, steps: Tensor) -> Tensor:
        encoded = self.encoder(steps)
        attended, _ = self.attention(encoded, encoded, encoded, need_weights=False)
        # A program that is not tiled has no steps: it adds nothing, whatever the biases are.
        summed: Tensor = (encoded + attended).sum(dim=1)
        return summed * _there(steps).any(dim=1, keepdim=True)


class Pacm(nn.Module):
    """Pruner's pattern-aware cost model: both branches, concatenated, ``384 -> 256``, two residual layers, ``-> 1``."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        (_, statement_columns), (_, step_columns) = shapes
        self.statements = StatementBranch(statement_columns)
        self.dataflow = DataflowBranch(step_columns)
        self.join = nn.Linear(HIDDEN + DATAFLOW_WIDTH, HIDDEN)
        self.first, self.second = _Residual(HIDDEN), _Residual(HIDDEN)
        self.last = nn.Linear(HIDDEN, 1)

    def forward(self, statements: Tensor, dataflow: Tensor) -> Tensor:
        together = torch.cat([self.statements(statements), self.dataflow(dataflow)], dim=1)
        score: Tensor = self.last(self.second(self.first(torch.relu(self.join(together)))))
        return score[:, 0]


class Mlp(nn.Module):
    """TenSet's multi-layer perceptron: the statement branch, two residual layers, ``-> 1``."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        ((_, columns),) = shapes
        self.statements = StatementBranch(columns)
        self.first, self.second = _Residual(HIDDEN), _Residual(HIDDEN)
        self.last = nn.Linear(HIDDEN, 1)

    def forward(self, statements: Tensor) -> Tensor:
        score: Tensor = self.last(self.second(self.first(self.statements(statements))))
        return score[:, 0]


class TreeGru(nn.Module):
    """AutoTVM's context-encoded TreeGRU (section 4, appendix A.3).

    The nest is a chain, read from the innermost loop outwards. Each loop's context is embedded in 128 numbers, a GRU
    cell of 128 carries the state ``h`` of the loops inside, and every ``h`` is scattered into ``m`` slots,
    ``out_i = softmax(W^T h)_i h``, which are summed over the loops: ``(n, m * 128) -> 1``.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        ((_, columns),) = shapes
        self.embed = nn.Linear(columns, LOOP_WIDTH)
        self.cell = nn.GRU(LOOP_WIDTH, GRU_HIDDEN, batch_first=True)
        self.scatter = nn.Linear(GRU_HIDDEN, SLOTS, bias=False)
        self.last = nn.Linear(SLOTS * GRU_HIDDEN, 1)

    def forward(self, loops: Tensor) -> Tensor:
        there = _there(loops)
        depth = there.sum(dim=1)
        steps = torch.arange(max(int(depth.max()), 1))
        # Row t of the chain is loop depth - 1 - t; what is beyond its end comes last and is left out of the sum.
        index = (depth[:, None] - 1 - steps[None, :]).clamp(min=0)
        chain = torch.gather(loops, 1, index[:, :, None].expand(-1, -1, loops.shape[2]))
        states, _ = self.cell(torch.tanh(self.embed(chain)))
        slots = torch.softmax(self.scatter(states), dim=2) * (steps[None, :] < depth[:, None])[:, :, None]
        scattered = torch.einsum("ntm,nth->nmh", slots, states)
        score: Tensor = self.last(scattered.flatten(1))
        return score[:, 0]
