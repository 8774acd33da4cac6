"""Small networks with one attention, in the forms in which exported networks have it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

Example = tuple[nn.Module, tuple[Tensor, ...]]

HEADS, WIDTH = 4, 16


class Attention(nn.Module):
    """Attention of ``HEADS`` heads over ``(samples, rows, HEADS * WIDTH)``.

    Args:
        attend: query, key and value (samples, heads, rows, width), to the result of that shape.
        shared: heads of keys and values.
        rotary: whether queries and keys are rotated by their place.
    """

    def __init__(self, attend: Callable[..., Tensor], shared: int = HEADS, rotary: bool = False) -> None:
        super().__init__()
        self.attend, self.shared, self.rotary = attend, shared, rotary
        self.query = nn.Linear(HEADS * WIDTH, HEADS * WIDTH)
        self.key, self.value = (nn.Linear(HEADS * WIDTH, shared * WIDTH) for _ in range(2))

    def forward(self, x: Tensor, *masks: Tensor) -> Tensor:
        samples, rows, _ = x.shape
        layers = ((self.query, HEADS), (self.key, self.shared), (self.value, self.shared))
        query, key, value = (each(x).view(samples, rows, heads, WIDTH).transpose(1, 2) for each, heads in layers)
        if self.rotary:
            angle = torch.arange(rows)[:, None] * torch.arange(WIDTH)[None] / WIDTH
            query, key = (each * angle.cos() + _half_turned(each) * angle.sin() for each in (query, key))
        key, value = (each.repeat_interleave(HEADS // self.shared, 1) for each in (key, value))
        return self.attend(query, key, value, *masks).transpose(1, 2).reshape(samples, rows, HEADS * WIDTH)


def _half_turned(x: Tensor) -> Tensor:
    return torch.cat((-x[..., WIDTH // 2 :], x[..., : WIDTH // 2]), -1)


def by_hand(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention as products and a softmax, with an added mask."""
    scores = query @ key.transpose(-1, -2) / WIDTH**0.5
    return torch.softmax(scores if mask is None else scores + mask, -1) @ value


def softened(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention whose scores are bounded by a hyperbolic tangent."""
    return torch.softmax(torch.tanh(query @ key.transpose(-1, -2) / 20.0) * 20.0, -1) @ value


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each row attends to those before it."""
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def _tokens(samples: int, rows: int) -> Tensor:
    return torch.randn(samples, rows, HEADS * WIDTH)


def _some(rows: int, share: float) -> Tensor:
    """A mask of true and false; its second row is all false."""
    mask = torch.rand(1, 1, rows, rows) < share
    mask[..., 1, :] = False
    return mask


def examples() -> dict[str, Example]:
    """The networks, by name."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return {
            "plain": (Attention(by_hand), (_tokens(1, 32),)),
            "odd": (Attention(by_hand), (_tokens(1, 37),)),
            "prime": (Attention(scaled_dot_product_attention), (_tokens(1, 53),)),
            "batch": (Attention(scaled_dot_product_attention), (_tokens(3, 24),)),
            "added": (Attention(by_hand), (_tokens(1, 21), torch.randn(1, 1, 21, 21))),
            "masked": (Attention(scaled_dot_product_attention), (_tokens(1, 19), _some(19, 0.5))),
            "causal": (Attention(causal), (_tokens(1, 26),)),
            "shared": (Attention(scaled_dot_product_attention, shared=2), (_tokens(1, 33),)),
            "rotary": (Attention(causal, shared=2, rotary=True), (_tokens(1, 20),)),
            "softened": (Attention(softened), (_tokens(1, 18),)),
        }
