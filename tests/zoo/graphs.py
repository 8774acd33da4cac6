"""Small networks on graphs: messages along edges, added up, averaged or weighted at the nodes where they arrive."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo.catalogue import Example, Make

_NODES, _EDGES, _WIDTH = 20, 60, 12


class _GraphConvolution(nn.Module):
    """Features of neighbours, scaled by both nodes' degrees; index_add adds them up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(_WIDTH, 16), nn.Linear(16, 5)

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        degrees = torch.ones(_NODES).scatter_add(0, target, torch.ones(_EDGES))
        scale = (degrees[source] * degrees[target]).rsqrt()[:, None]
        for layer in (self.first, self.last):
            rows = layer(features)
            sums = torch.zeros_like(rows).index_add(0, target, rows[source] * scale)
            features = functional.elu(sums + rows / degrees[:, None])
        return features


class _GraphSample(nn.Module):
    """The mean and the largest of the neighbours beside a node's own features: scatter_reduce and scatter_add."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * _WIDTH, 8)

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        places, rows = target[:, None].expand(-1, _WIDTH), features[source]
        zeros = torch.zeros_like(features)
        mean = zeros.scatter_reduce(0, places, rows, "mean", include_self=False)
        largest = zeros.scatter_reduce(0, places, rows, "amax", include_self=False)
        return self.layer(torch.cat([features, mean, largest], 1))


class _GraphAttention(nn.Module):
    """Messages weighted by a softmax over the edges that arrive at a node, by head."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.layer = heads, nn.Linear(_WIDTH, heads * 8)
        self.at_target, self.at_source = (nn.Parameter(torch.randn(heads, 8)) for _ in range(2))

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        rows = self.layer(features).view(-1, self.heads, 8)
        score = functional.leaky_relu(
            (rows * self.at_source).sum(-1)[source] + (rows * self.at_target).sum(-1)[target], 0.2
        )
        places = target[:, None].expand(-1, self.heads)
        largest = score.new_full((_NODES, self.heads), -1e9).scatter_reduce(0, places, score, "amax")
        share = (score - largest[target]).exp()
        total = score.new_zeros(_NODES, self.heads).scatter_add_(0, places, share)
        weighted = rows[source] * (share / total[target].clamp(min=1e-12))[:, :, None]
        return rows.new_zeros(_NODES, self.heads, 8).index_add_(0, target, weighted).flatten(1)


def _on_a_graph(module: nn.Module) -> Example:
    return module, (torch.randn(_NODES, _WIDTH), torch.randint(0, _NODES, (2, _EDGES)))


NETWORKS: dict[str, Make] = {
    "graph_convolution": lambda: _on_a_graph(_GraphConvolution()),
    "graph_sample": lambda: _on_a_graph(_GraphSample()),
    "edge_attention": lambda: _on_a_graph(_GraphAttention()),
}
