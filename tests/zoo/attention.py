"""Small networks of attention in its usual forms, and of the ways to tell positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as attend

from tests.zoo.catalogue import Make

_WIDTH, _HEADS, _TOKENS = 32, 4, 20


class _Heads(nn.Module):
    """Queries, keys and values of several heads from one input; subclasses say how they attend."""

    def __init__(self, key_heads: int = _HEADS) -> None:
        super().__init__()
        self.key_heads, self.size = key_heads, _WIDTH // _HEADS
        self.query = nn.Linear(_WIDTH, _WIDTH)
        self.key, self.value = (nn.Linear(_WIDTH, key_heads * self.size, bias=False) for _ in range(2))
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def split(self, data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, tokens, _ = data.shape
        query = self.query(data).view(batch, tokens, _HEADS, self.size).transpose(1, 2)
        key = self.key(data).view(batch, tokens, self.key_heads, self.size).transpose(1, 2)
        value = self.value(data).view(batch, tokens, self.key_heads, self.size).transpose(1, 2)
        return query, key, value

    def join(self, heads: Tensor) -> Tensor:
        return self.out(heads.transpose(1, 2).flatten(2))


class _Causal(_Heads):
    def forward(self, data: Tensor) -> Tensor:
        return self.join(attend(*self.split(data), is_causal=True))


class _Masked(_Heads):
    """A boolean mask of the keys, as an input."""

    def forward(self, data: Tensor, mask: Tensor) -> Tensor:
        return self.join(attend(*self.split(data), attn_mask=mask[:, None, None, :]))


class _Added(_Heads):
    """Learned relative positions added to the scores (T5, Swin)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2 * _TOKENS - 1, _HEADS)
        steps = torch.arange(_TOKENS)
        self.register_buffer("index", steps[:, None] - steps[None, :] + _TOKENS - 1)

    def forward(self, data: Tensor) -> Tensor:
        bias = self.table(self.index).permute(2, 0, 1).unsqueeze(0)
        return self.join(attend(*self.split(data), attn_mask=bias))


class _Linear(_Heads):
    """Linear attention: keys and values are summed up before queries see them."""

    def forward(self, data: Tensor) -> Tensor:
        query, key, value = self.split(data)
        query, key = nn.functional.elu(query) + 1, nn.functional.elu(key) + 1
        weights = 1 / torch.einsum("bhnd,bhd->bhn", query, key.sum(2))
        return self.join(
            torch.einsum("bhnd,bhde,bhn->bhne", query, torch.einsum("bhnd,bhne->bhde", key, value), weights)
        )


class _Grouped(_Heads):
    """Llama's: rotary embeddings, two heads of keys and values for four of queries, a causal mask."""

    def __init__(self) -> None:
        super().__init__(key_heads=2)
        inverse = 1.0 / 10000 ** (torch.arange(0, self.size, 2) / self.size)
        self.register_buffer("inverse", inverse)

    @staticmethod
    def turned(data: Tensor, angles: Tensor) -> Tensor:
        left, right = data.chunk(2, -1)
        return data * angles.cos() + torch.cat([-right, left], -1) * angles.sin()

    def forward(self, data: Tensor) -> Tensor:
        query, key, value = self.split(data)
        angles = torch.arange(data.shape[1])[:, None] * self.inverse
        angles = torch.cat([angles, angles], -1)
        query, key = self.turned(query, angles), self.turned(key, angles)
        key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
        return self.join(attend(query, key, value, is_causal=True))


class _Alibi(_Heads):
    def forward(self, data: Tensor) -> Tensor:
        query, key, value = self.split(data)
        steps = torch.arange(data.shape[1])
        slopes = 2.0 ** -torch.arange(1, _HEADS + 1)
        distance = (steps[None, :] - steps[:, None]).float()
        scores = query @ key.transpose(-1, -2) / self.size**0.5 + slopes[:, None, None] * distance
        scores = scores.masked_fill(distance > 0, float("-inf"))
        return self.join(scores.softmax(-1) @ value)


class _Step(_Heads):
    """One step of generation: past keys and values come in and go out, longer by one."""

    def forward(self, data: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.split(data)
        keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        return self.join(attend(query, keys, values)), keys, values


class _Windows(nn.Module):
    """Swin's shifted windows of 4x4 over an image of channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(_WIDTH), _Causal()

    def forward(self, data: Tensor) -> Tensor:
        batch, height, width, channels = data.shape
        shifted = torch.roll(self.norm(data), (-2, -2), (1, 2))
        windows = shifted.view(batch, height // 4, 4, width // 4, 4, channels).transpose(2, 3).reshape(-1, 16, channels)
        out = self.heads(windows).view(batch, height // 4, width // 4, 4, 4, channels).transpose(2, 3)
        return data + torch.roll(out.reshape(batch, height, width, channels), (2, 2), (1, 2))


class _TorchAttention(nn.Module):
    """torch's own layer, cross attention with a padding mask; the weights are an output too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True, kdim=20, vdim=20)

    def forward(self, query: Tensor, context: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        out, weights = self.layer(query, context, context, key_padding_mask=padding)
        return out, weights


class _EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Transformer(_WIDTH, _HEADS, 1, 1, 64, batch_first=True, norm_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.layers(source, target, tgt_mask=mask, tgt_is_causal=True)


class _VisionTransformer(nn.Module):
    """Patches, a class token, learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, _WIDTH, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.positions = nn.Parameter(torch.randn(1, 17, _WIDTH))
        self.encoder = nn.TransformerEncoderLayer(_WIDTH, _HEADS, 64, activation="gelu", batch_first=True)
        self.head = nn.Linear(_WIDTH, 10)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(image), -1, -1), patches], 1) + self.positions
        return self.head(self.encoder(tokens)[:, 0])


class _Sinusoids(nn.Module):
    """Positions as sines, computed in the network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(_WIDTH, _HEADS, 64, batch_first=True)

    def forward(self, data: Tensor) -> Tensor:
        angles = torch.arange(data.shape[1])[:, None] * torch.exp(-torch.arange(0, _WIDTH, 2) / 3.0)
        return self.layer(data + torch.stack([angles.sin(), angles.cos()], -1).flatten(1))


def _tokens(tokens: int = _TOKENS) -> Tensor:
    return torch.randn(2, tokens, _WIDTH)


def _seen() -> Tensor:
    return torch.arange(_TOKENS)[None, :] < torch.tensor([[_TOKENS], [_TOKENS - 5]])


NETWORKS: dict[str, Make] = {
    "attention_causal": lambda: (_Causal(), (_tokens(),)),
    "attention_masked": lambda: (_Masked(), (_tokens(), _seen())),
    "attention_relative": lambda: (_Added(), (_tokens(),)),
    "attention_linear": lambda: (_Linear(), (_tokens(),)),
    "attention_grouped_rotary": lambda: (_Grouped(), (_tokens(),)),
    "attention_alibi": lambda: (_Alibi(), (_tokens(),)),
    "attention_step": lambda: (_Step(), (_tokens(1), torch.randn(2, _HEADS, 9, 8), torch.randn(2, _HEADS, 9, 8))),
    "attention_windows": lambda: (_Windows(), (torch.randn(1, 8, 8, _WIDTH),)),
    "multi_head_attention": lambda: (_TorchAttention(), (_tokens(), torch.randn(2, _TOKENS, 20), ~_seen())),
    "encoder_decoder": lambda: (_EncoderDecoder(), (_tokens(), _tokens(7))),
    "small_vision_transformer": lambda: (_VisionTransformer(), (torch.randn(2, 3, 16, 16),)),
    "sinusoids": lambda: (_Sinusoids(), (_tokens(),)),
}
