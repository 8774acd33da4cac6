"""Small networks of everything else: tables, gathering, several inputs and outputs, tied weights, odd operators."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo.catalogue import Make


class _TiedWeights(nn.Module):
    """A language model whose head is its table of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(40, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(self.table(tokens))))


class _Recommender(nn.Module):
    """DLRM: tables of categories, dense features, dot products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(30 + 5 * at, 8) for at in range(3))
        self.bottom, self.top = nn.Linear(6, 8), nn.Linear(8 + 6, 1)
        left, right = torch.triu_indices(4, 4, offset=1)
        self.register_buffer("left", left)
        self.register_buffer("right", right)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        dense = torch.relu(self.bottom(dense))
        columns = [table(categories[:, at]) for at, table in enumerate(self.tables)]
        stacked = torch.stack([dense, *columns], 1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.left, self.right]
        return torch.sigmoid(self.top(torch.cat([dense, pairs], 1)))


class _Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.EmbeddingBag(30, 12, mode="mean"), nn.Linear(12, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens))


class _SeveralOutputs(nn.Module):
    """Several inputs; a dictionary of outputs, nested, one of them an input."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.vector = nn.Conv2d(3, 8, 3, stride=2), nn.Linear(5, 8)
        self.classes, self.boxes = nn.Conv2d(8, 6, 1), nn.Conv2d(8, 4, 1)

    def forward(self, image: Tensor, vector: Tensor) -> dict[str, object]:
        features = torch.relu(self.image(image) + self.vector(vector)[:, :, None, None])
        scores = self.classes(features)
        return {"scores": scores.sigmoid(), "pair": (self.boxes(features).exp(), scores.argmax(1)), "vector": vector}


class _Gathered(nn.Module):
    """Rows by index inputs: gather, index_select, take_along_dim, advanced indexing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 12)

    def forward(self, data: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        data = self.layer(data)
        rows = data.gather(1, index[:, :, None].expand(-1, -1, 12))
        return rows, data.index_select(1, index[0]), data[torch.arange(2)[:, None], index]


class _Selected(nn.Module):
    """A head that picks the best class without sorting: argmax, max, one_hot, where, comparisons."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 7)

    def forward(self, data: Tensor) -> tuple[Tensor, ...]:
        scores = self.layer(data).softmax(-1)
        best, at = scores.max(-1)
        chosen = functional.one_hot(at, 7).to(scores.dtype)
        return best, at, torch.where(scores > 0.1, scores, chosen), scores >= best[:, None] * 0.5


class _Pieces(nn.Module):
    """Split, stack, chunk, unbind, narrow, strided slices, expand, repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 24)

    def forward(self, data: Tensor) -> Tensor:
        first, second, third = self.layer(data).split([6, 6, 12], -1)
        fourth = third[..., ::2] * third[..., 1::2]
        stacked = torch.stack([first, second, fourth], 1).repeat(1, 1, 2, 1)
        upper, lower = stacked.unbind(0)
        return torch.cat([upper.narrow(1, 1, 4), lower[:, -4:]], 2) + first.mean(1)[:1, None, :1].expand(3, 4, 12)


class _Reductions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 8, 3)

    def forward(self, data: Tensor) -> tuple[Tensor, ...]:
        data = self.layer(data)
        spread = torch.stack([data.amax((2, 3)), data.amin((2, 3)), data.std((2, 3)), data.logsumexp((2, 3))], 1)
        return (
            spread,
            data.cumsum(1),
            data.norm(dim=1),
            data.abs().sum((1, 2)),
            (data > 1.0).any(1),
            data[:, :2].prod(1),
        )


class _Mixture(nn.Module):
    """A mixture of experts in which all experts run and a gate weighs them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.weights = nn.Linear(12, 4), nn.Parameter(torch.randn(4, 12, 16) / 4)

    def forward(self, data: Tensor) -> Tensor:
        gate = self.gate(data).softmax(-1)
        return torch.einsum("be,beo->bo", gate, torch.einsum("bi,eio->beo", data, self.weights).relu())


class _Capsules(nn.Module):
    """Capsules with one round of routing."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(1, 10, 4, 6, 8) / 4)

    def forward(self, data: Tensor) -> Tensor:
        votes = (self.weights @ data[:, :, None, :, None]).squeeze(-1)
        routes = torch.zeros_like(votes[..., :1])
        for _ in range(2):
            total = (routes.softmax(2) * votes).sum(1, keepdim=True)
            length = total.pow(2).sum(-1, keepdim=True)
            total = length / (1 + length) * total / (length.sqrt() + 1e-6)
            routes = routes + (votes * total).sum(-1, keepdim=True)
        return total.squeeze(1)


class _Mixer(nn.Module):
    """MLP-Mixer: linear layers over tokens and over channels by turns."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.channels = nn.Sequential(nn.Linear(20, 40), nn.GELU(), nn.Linear(40, 20))
        self.first, self.second = nn.LayerNorm(20), nn.LayerNorm(20)

    def forward(self, data: Tensor) -> Tensor:
        data = data + self.tokens(self.first(data).transpose(1, 2)).transpose(1, 2)
        return data + self.channels(self.second(data))


class _Variational(nn.Module):
    """An autoencoder that is given its noise."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(20, 2 * 4), nn.Linear(4, 20)

    def forward(self, data: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.encoder(data).chunk(2, -1)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)
        return torch.sigmoid(self.decoder(mean + noise * torch.exp(0.5 * log_variance))), divergence


class _Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.tower(left), self.tower(right)
        return functional.cosine_similarity(first, second), torch.cdist(first, second)


class _Distances(nn.Module):
    """A point cloud's features as in PointNet: shared linear layers, the largest over all points, broadcast again."""

    def __init__(self) -> None:
        super().__init__()
        self.points, self.whole = nn.Conv1d(3, 16, 1), nn.Linear(16, 9)

    def forward(self, points: Tensor) -> Tensor:
        turn = self.whole(self.points(points).amax(-1)).view(-1, 3, 3)
        moved = torch.bmm(turn, points)
        return torch.cat([moved, self.points(moved).amax(-1, keepdim=True).expand(-1, -1, points.shape[-1])], 1)


class _Fourier(nn.Module):
    """A field over coordinates: sines and cosines of random frequencies (NeRF)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(3, 12))
        self.layers = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, points: Tensor) -> Tensor:
        angles = points @ self.frequencies
        colour, density = self.layers(torch.cat([angles.sin(), angles.cos()], -1)).split([3, 1], -1)
        return torch.cat([colour.sigmoid(), functional.softplus(density)], -1)


class _GraphLayer(nn.Module):
    """Graph attention over an adjacency matrix that is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.left, self.right = nn.Linear(10, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        nodes = self.layer(nodes)
        scores = functional.leaky_relu(self.left(nodes) + self.right(nodes).transpose(1, 2), 0.2)
        return scores.masked_fill(~adjacency, -1e9).softmax(-1) @ nodes


class _Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(6, 7, 5)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.layer(left, right)


class _Scattered(nn.Module):
    """Sums by segment (the messages of a graph's edges), and rows written into place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        messages = self.layer(nodes)[source]
        summed = torch.zeros_like(nodes).index_add(0, target, messages)
        placed = torch.zeros_like(nodes).scatter(0, target[:10, None].expand(-1, 8), messages[:10])
        return summed, placed.slice_scatter(messages[:2], 0, 1, 3)


class _Preprocessed(nn.Module):
    """A uint8 image of channels last, normalised in the network."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.48, 0.46, 0.41]))
        self.register_buffer("deviation", torch.tensor([0.23, 0.22, 0.225]))
        self.layer = nn.Conv2d(3, 8, 3)

    def forward(self, image: Tensor) -> Tensor:
        scaled = (image.float() / 255 - self.mean) / self.deviation
        return self.layer(scaled.permute(0, 3, 1, 2))


def _mlp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 10)), (
        torch.randn(3, 3, 4, 4),
    )


NETWORKS: dict[str, Make] = {
    "mlp": _mlp,
    "tied_weights": lambda: (_TiedWeights(), (torch.randint(0, 40, (2, 9)),)),
    "recommender": lambda: (_Recommender(), (torch.randn(4, 6), torch.randint(0, 30, (4, 3)))),
    "embedding_bag": lambda: (_Bag(), (torch.randint(0, 30, (3, 6)),)),
    "several_outputs": lambda: (_SeveralOutputs(), (torch.randn(2, 3, 11, 11), torch.randn(2, 5))),
    "gathered": lambda: (_Gathered(), (torch.randn(2, 9, 12), torch.randint(0, 9, (2, 5)))),
    "selected": lambda: (_Selected(), (torch.randn(5, 10),)),
    "pieces": lambda: (_Pieces(), (torch.randn(2, 5, 24),)),
    "reductions": lambda: (_Reductions(), (torch.randn(1, 3, 9, 9),)),
    "mixture_of_experts": lambda: (_Mixture(), (torch.randn(6, 12),)),
    "capsules": lambda: (_Capsules(), (torch.randn(2, 10, 8),)),
    "mixer": lambda: (_Mixer(), (torch.randn(2, 16, 20),)),
    "variational": lambda: (_Variational(), (torch.randn(3, 20), torch.randn(3, 4))),
    "siamese": lambda: (_Siamese(), (torch.randn(2, 3, 12, 12), torch.randn(2, 3, 12, 12))),
    "point_cloud": lambda: (_Distances(), (torch.randn(2, 3, 30),)),
    "fourier_field": lambda: (_Fourier(), (torch.randn(20, 3),)),
    "graph_attention": lambda: (_GraphLayer(), (torch.randn(2, 7, 10), torch.rand(2, 7, 7) > 0.3)),
    "bilinear_layer": lambda: (_Bilinear(), (torch.randn(4, 6), torch.randn(4, 7))),
    "scattered": lambda: (
        _Scattered(),
        (torch.randn(12, 8), torch.randint(0, 12, (30,)), torch.cat([torch.randperm(12), torch.arange(18) % 12])),
    ),
    "preprocessed": lambda: (_Preprocessed(), (torch.randint(0, 256, (1, 12, 12, 3), dtype=torch.uint8),)),
}
