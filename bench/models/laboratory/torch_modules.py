"""Networks of the laboratory, as PyTorch modules; see :mod:`policies.cost_models.torch_modules`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from policies.cost_models.torch_modules import (
    DATAFLOW_WIDTH,
    HEADS,
    HIDDEN,
    DataflowBranch,
    Residual,
    StatementBranch,
    present_rows,
)

LOOP_WIDTH = 128
GRU_HIDDEN = 128
SLOTS = 8
PRIMITIVE_WIDTH = 64


class Dataflow(nn.Module):
    """PaCM without its statement branch: ``128 -> 256``, two residual layers, ``-> 1``."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        ((_, columns),) = shapes
        self.dataflow = DataflowBranch(columns)
        self.join = nn.Linear(DATAFLOW_WIDTH, HIDDEN)
        self.first, self.second = Residual(HIDDEN), Residual(HIDDEN)
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
        self.first, self.second = Residual(HIDDEN), Residual(HIDDEN)
        self.last = nn.Linear(HIDDEN, 1)

    def forward(self, statements: Tensor) -> Tensor:
        score: Tensor = self.last(self.second(self.first(self.statements(statements))))
        return score[:, 0]


class SelfAttention(nn.Module):
    """A layer on rows ``(n, r, w)``: 4-head self-attention with residual, then a residual layer on each row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, HEADS, batch_first=True)
        self.residual = Residual(width)

    def forward(self, rows: Tensor, absent: Tensor) -> Tensor:
        attended, _ = self.attention(rows, rows, rows, key_padding_mask=absent, need_weights=False)
        encoded: Tensor = self.residual(rows + attended)
        return encoded


class Tlp(nn.Module):
    """A network after TLP, on primitives ``(n, t, c)``.

    Each primitive is embedded in 64 numbers, to which a learned vector for its position in the sequence is added. Two
    layers of self-attention follow, then the sum over the present primitives, and ``(n, 64) -> 64 -> 1``.

    The position distinguishes two primitives of the same kind and numbers, as the names of loops do in the paper.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        ((tokens, columns),) = shapes
        self.embed = nn.Linear(columns, PRIMITIVE_WIDTH)
        self.place = nn.Parameter(torch.randn(tokens, PRIMITIVE_WIDTH))
        self.first, self.second = SelfAttention(PRIMITIVE_WIDTH), SelfAttention(PRIMITIVE_WIDTH)
        self.head = nn.Linear(PRIMITIVE_WIDTH, PRIMITIVE_WIDTH)
        self.last = nn.Linear(PRIMITIVE_WIDTH, 1)

    def forward(self, primitives: Tensor) -> Tensor:
        there = present_rows(primitives)
        absent = ~there & there.any(dim=1, keepdim=True)  # attention over no row at all would give NaN
        rows = torch.relu(self.embed(primitives) + self.place[: primitives.shape[1]])
        rows = self.second(self.first(rows, absent), absent)
        summed = (rows * there[:, :, None]).sum(dim=1)
        score: Tensor = self.last(torch.relu(self.head(summed)))
        return score[:, 0]


class TreeGru(nn.Module):
    """AutoTVM's context-encoded TreeGRU (section 4, figure 3d, appendix A.3).

    The loops are a tree, which is read from the leaves to the roots. Each loop's context is embedded in 128 numbers. A
    GRU cell of 128 computes the loop's state ``h`` from this embedding and from the sum of the states of its child
    loops (Tai et al.'s child-sum tree, which the paper cites; 0 for a leaf). Every ``h`` is scattered into ``m`` slots,
    ``out_i = softmax(W^T h)_i h``. The slots are summed over all loops of the tree: ``(n, m * 128) -> 1``.

    The last column of a row is the row number of the parent loop, counted from 1; 0 for none. A row comes after the row
    of its parent.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        ((_, columns),) = shapes
        self.embed = nn.Linear(columns - 1, LOOP_WIDTH)
        self.cell = nn.GRUCell(LOOP_WIDTH, GRU_HIDDEN)
        self.scatter = nn.Linear(GRU_HIDDEN, SLOTS, bias=False)
        self.last = nn.Linear(SLOTS * GRU_HIDDEN, 1)

    def forward(self, loops: Tensor) -> Tensor:
        there = present_rows(loops)
        parents = loops[:, :, -1].round().long()
        embedded = torch.tanh(self.embed(loops[:, :, :-1]))
        # Sum of the states of the child loops, by the row number of the parent; 0 is the parent of the outermost loops.
        inside = [torch.zeros(len(loops), GRU_HIDDEN, dtype=embedded.dtype) for _ in range(loops.shape[1] + 1)]
        states = []
        deepest = int(there.sum(dim=1).max()) if len(loops) else 0
        for row in reversed(range(deepest)):
            state = self.cell(embedded[:, row], inside[row + 1]) * there[:, row, None]
            states.append(state)
            for parent in set(parents[there[:, row], row].tolist()):
                mine = (there[:, row] & (parents[:, row] == parent))[:, None]
                inside[parent] = inside[parent] + state * mine
        together = torch.stack(states or inside[:1], dim=1)  # a state of 0 adds 0 to every slot
        slots = torch.softmax(self.scatter(together), dim=2)
        scattered = torch.einsum("nrm,nrh->nmh", slots, together)
        score: Tensor = self.last(scattered.flatten(1))
        return score[:, 0]
