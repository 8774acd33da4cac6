"""AutoTVM's two objectives (section 3.2) for a network.

Notation: ``c_i`` the costs of ``n`` records of one task, here log seconds; ``f(x_i)`` what is predicted of them.

    rank         sum_(i, j) log(1 + exp(-sign(c_i - c_j) (f(x_i) - f(x_j))))       (equation 2)
    regression   sum_i (f(x_i) - c_i)^2                                            (without a number)

Both are means here, which changes no minimum. A network of ours has scores ``s = -f``, larger for faster, and labels
``y = -c``: both signs of equation 2 turn, so that it reads the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from policies.arrays import Floats, Groups

if TYPE_CHECKING:
    import torch


def pairwise_rank(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Equation 2 over all pairs of a list with different labels, ``scores`` and ``labels`` ``(n,)``; 0 without any."""
    import torch

    sign = torch.sign(labels[:, None] - labels[None, :])
    loss = torch.nn.functional.softplus(-sign * (scores[:, None] - scores[None, :]))
    different = sign != 0
    return (loss * different).sum() / different.sum().clamp(min=1)


def squared_error(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The regression's loss of a list, ``scores`` and ``labels`` ``(n,)``."""
    return (scores - labels).square().mean()


def deviations(log_secs: Floats, groups: Groups) -> Floats:
    """Labels of the regression ``(n,)``: by how many log seconds a record is faster than the mean of its task's.

    A network starts near 0 and is asked for the order within a task: the level comes from the map to seconds
    (:mod:`policies.cost_models.monotone`).
    """
    _, index = np.unique(groups, return_inverse=True)
    means = np.bincount(index, log_secs) / np.bincount(index)
    return np.asarray(means[index] - log_secs)
