"""Products of groups of rows, each group with a matrix of its own, as in mixtures of experts, and the counts of the
groups. transformers, which defines one of the operators, need not be installed.

Importing this module loads torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return the decompositions. Those of transformers' operators are included if transformers was imported."""
    table: dict[Any, Callable[..., Any]] = {_ATEN.histc.default: _histogram, _ATEN._grouped_mm.default: _grouped}
    operators = torch.ops.transformers
    if hasattr(operators, "grouped_mm_fallback"):
        table[operators.grouped_mm_fallback.default] = _grouped
    return table


def _histogram(data: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Count the elements of each bin: one comparison for every element and bin. The last bin includes its upper end."""
    if min == max:
        return NotImplemented  # the bounds depend on the data
    values = data.flatten()
    place = torch.clamp(torch.floor((values - min) * (bins / (max - min))), max=bins - 1)
    inside = (values >= min) & (values <= max)
    found = (place[:, None] == torch.arange(bins, device=data.device, dtype=data.dtype)) & inside[:, None]
    return found.to(data.dtype).sum(0)


def _grouped(
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """Multiply each row of ``left`` (rows, width) by its group's matrix of ``right`` (groups, width, columns). Each
    group ends before the row in ``offs``. All rows are multiplied by every matrix, as the groups' sizes depend on data.
    """
    if left.dim() != 2 or right.dim() != 3 or offs is None or bias is not None:
        return NotImplemented
    row = torch.arange(len(left), device=left.device)[:, None]
    ends = offs.to(torch.int64)
    begins = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
    own = (row >= begins) & (row < ends)  # (rows, groups)
    products = torch.matmul(left[None], right)  # (groups, rows, columns)
    chosen = torch.where(own.transpose(0, 1)[:, :, None], products, 0.0).sum(0)
    return chosen.to(out_dtype or left.dtype)
