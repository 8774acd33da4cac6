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
    """Steps ``(n, 10, 23)``: ``23 -> 64 -> 128`` each, 4-head self-attention with residual, summed over the steps that
    there are, ``(n, 128)``."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(columns, DATAFLOW_HIDDEN), nn.ReLU(), nn.Linear(DATAFLOW_HIDDEN, DATAFLOW_WIDTH), nn.ReLU()
        )
        self.attention = nn.MultiheadAttention(DATAFLOW_WIDTH, HEADS, batch_first=True)

    def forward(self, steps: Tensor) -> Tensor:
        there = _there(steps)
        encoded = self.encoder(steps)
        # Nobody attends to a step that is absent. A program that is not tiled has none at all: what comes of it counts
        # for nothing, and attention to no step would be no number.
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
        self.first, self.second = _Residual(HIDDEN), _Residual(HIDDEN)
        self.last = nn.Linear(HIDDEN, 1)

    def forward(self, statements: Tensor, dataflow: Tensor) -> Tensor:
        together = torch.cat([self.statements(statements), self.dataflow(dataflow)], dim=1)
        score: Tensor = self.last(self.second(self.first(torch.relu(self.join(together)))))
        return score[:, 0]


class Dataflow(nn.Module):
    """PaCM without its statement branch: ``128 -> 256``, two residual layers, ``-> 1``."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        ((_, columns),) = shapes
        self.dataflow = DataflowBranch(columns)
        self.join = nn.Linear(DATAFLOW_WIDTH, HIDDEN)
        self.first, self.second = _Residual(HIDDEN), _Residual(HIDDEN)
        self.last = nn.Linear(HIDDEN, 1)

    def forward(self, dataflow: Tensor) -> Tensor:
        score: Tensor = self.last(self.second(self.first(torch.relu(self.join(self.dataflow(dataflow))))))
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
    """AutoTVM's context-encoded TreeGRU (section 4, figure 3d, appendix A.3).

    The loops are a tree, read from the leaves to the roots. Each loop's context is embedded in 128 numbers; a GRU cell
    of 128 carries its state ``h`` on from the sum of the states of the loops directly inside (Tai et al.'s child-sum
    tree, which the paper cites; 0 for a leaf), and every ``h`` is scattered into ``m`` slots,
    ``out_i = softmax(W^T h)_i h``, which are summed over all loops of the tree: ``(n, m * 128) -> 1``.

    The last column of a row is the row of the loop around it, counted from 1, 0 for none; rows come after those.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        ((_, columns),) = shapes
        self.embed = nn.Linear(columns - 1, LOOP_WIDTH)
        self.cell = nn.GRUCell(LOOP_WIDTH, GRU_HIDDEN)
        self.scatter = nn.Linear(GRU_HIDDEN, SLOTS, bias=False)
        self.last = nn.Linear(SLOTS * GRU_HIDDEN, 1)

    def forward(self, loops: Tensor) -> Tensor:
        there = _there(loops)
        parents = loops[:, :, -1].round().long()
        embedded = torch.tanh(self.embed(loops[:, :, :-1]))
        # What the loops inside hand on, by the row of the loop around them; row 0 is outside of everything.
        inside = [torch.zeros(len(loops), GRU_HIDDEN, dtype=embedded.dtype) for _ in range(loops.shape[1] + 1)]
        states = []
        deepest = int(there.sum(dim=1).max()) if len(loops) else 0
        for row in reversed(range(deepest)):
            state = self.cell(embedded[:, row], inside[row + 1]) * there[:, row, None]
            states.append(state)
            for parent in set(parents[there[:, row], row].tolist()):
                mine = (there[:, row] & (parents[:, row] == parent))[:, None]
                inside[parent] = inside[parent] + state * mine
        together = torch.stack(states or inside[:1], dim=1)  # a state of 0 is scattered into nothing
        slots = torch.softmax(self.scatter(together), dim=2)
        scattered = torch.einsum("nrm,nrh->nmh", slots, together)
        score: Tensor = self.last(scattered.flatten(1))
        return score[:, 0]
