"""LambdaRank, the objective of Pruner's cost model: pairs of a task's records, weighted by their effect at the top of
the list.

Notation: a list of ``n`` records of one task with labels ``y_i = min latency / latency_i`` in (0, 1] and scores
``s_i``, larger is better for both; ``r_i`` the rank of record ``i`` when the list is sorted by score, 1 for the first.

    G_i = (2^y_i - 1) / sum_k (2^y_(k) - 1) / log2(1 + k)        gain over the best possible DCG, y_(k) sorted by label
    D_i = log2(1 + r_i)                                          discount
    w_ij = |G_i - G_j| * |1 / D_i - 1 / D_j|                     change of the NDCG if the two are swapped
    loss = - sum over i, j with y_i > y_j of w_ij * log2 sigmoid(s_i - s_j)

It is the LambdaRank scheme of Wang et al., "The LambdaLoss framework" (equations 6 and 11), with sigma = 1. Records of
different tasks never meet in a list.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from policies.arrays import Floats, Groups

if TYPE_CHECKING:
    import torch

LEAST_DCG = 1e-10


def lambda_rank(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of one list, ``scores`` and ``labels`` ``(n,)``; 0 if no two labels differ."""
    import torch

    order = torch.argsort(scores.detach(), descending=True, stable=True)
    sorted_scores, sorted_labels = scores[order], labels[order]
    ranks = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
    discount = torch.log2(1.0 + ranks)
    gains = torch.pow(2.0, sorted_labels) - 1.0
    best = (torch.sort(gains, descending=True).values / discount).sum().clamp(min=LEAST_DCG)
    gain = gains / best
    weight = (gain[:, None] - gain[None, :]).abs() * (1.0 / discount[:, None] - 1.0 / discount[None, :]).abs()
    better = sorted_labels[:, None] > sorted_labels[None, :]
    # -log2 sigmoid(x) = softplus(-x) / ln 2, which does not overflow.
    loss = torch.nn.functional.softplus(sorted_scores[None, :] - sorted_scores[:, None]) / math.log(2.0)
    return (weight * loss * better).sum()


def relevance(log_secs: Floats, groups: Groups) -> Floats:
    """The labels: each record's throughput over the best of its task, in (0, 1], shape ``(n,)``."""
    return np.exp(fastest_of_group(log_secs, groups) - log_secs)


def fastest_of_group(log_secs: Floats, groups: Groups) -> Floats:
    """The log seconds of the fastest record of each record's task, shape ``(n,)``."""
    _, index = np.unique(groups, return_inverse=True)
    fastest = np.full(int(index.max()) + 1, np.inf)
    np.minimum.at(fastest, index, log_secs)
    return fastest[index]
