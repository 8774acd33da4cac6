"""AutoTVM's two objectives (section 3.2) for a network.

Notation: ``c_i`` are the costs of ``n`` records of one task, here in log seconds; ``f(x_i)`` are the predicted costs.

    rank         sum_(i, j) log(1 + exp(-sign(c_i - c_j) (f(x_i) - f(x_j))))       (equation 2)
    regression   sum_i (f(x_i) - c_i)^2                                            (not numbered)

Both are means here, which does not change their minima. Our networks have scores ``s = -f``, larger for faster
candidates, and labels ``y = -c``. Both signs in equation 2 change, so its form stays the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from policies.arrays import Floats, Groups

if TYPE_CHECKING:
    import torch


def pairwise_rank(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean of equation 2 over all pairs with different labels; 0 without such pairs.

    ``scores`` and ``labels``: shape ``(n,)``.
    """
    import torch

    sign = torch.sign(labels[:, None] - labels[None, :])
    loss = torch.nn.functional.softplus(-sign * (scores[:, None] - scores[None, :]))
    different = sign != 0
    return (loss * different).sum() / different.sum().clamp(min=1)


def squared_error(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean regression loss of ``scores`` and ``labels``, both ``(n,)``."""
    return (scores - labels).square().mean()


def deviations(log_secs: Floats, groups: Groups) -> Floats:
    """Return the labels of the regression ``(n,)``: the mean log seconds of the record's task minus its own.

    A network starts near 0 and has to learn the order within a task. The level comes from the map to seconds
    (:mod:`policies.cost_models.monotone`).
    """
    _, index = np.unique(groups, return_inverse=True)
    means = np.bincount(index, log_secs) / np.bincount(index)
    return np.asarray(means[index] - log_secs)
