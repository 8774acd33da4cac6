"""A small Llama of transformers with random weights: its prefill, and one step of decoding.

It has four layers, width 1024, 16 heads of width 64, and four heads of keys and values, without the output head. Larger
Llamas repeat the same block. Each function returns ``(module, example inputs)`` and needs ``pip install transformers``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bench.networks.torchvision_operators import load_or_define

Example = tuple[nn.Module, tuple[Tensor, ...]]

_SEED = 21
_SMALL = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4, "vocab_size": 8192}
_SMALL |= {"num_attention_heads": 16, "num_key_value_heads": 4}
_TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 64}
_TINY |= {"num_attention_heads": 2, "num_key_value_heads": 1}
_TOKENS, _FEW_TOKENS = 128, 16


def _llama(sizes: dict[str, int]) -> Any:
    load_or_define()  # transformers imports torchvision if it is installed
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(LlamaConfig(attn_implementation="eager", **sizes)).eval()


class _Prefill(nn.Module):
    """Token ids (1, tokens) to hidden states (1, tokens, width). Each token attends to itself and those before it."""

    mask: Tensor

    def __init__(self, llama: Any, tokens: int) -> None:
        super().__init__()
        self.llama = llama
        unseen = torch.full((1, 1, tokens, tokens), -1e4).triu(1)  # -1e4 is in the range of float16
        self.register_buffer("mask", unseen)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.llama(input_ids=ids, attention_mask=self.mask, use_cache=False)[0]
        return out


class _DecodeStep(nn.Module):
    """The id of one token (1, 1), and the keys and the values (layers, 1, heads, tokens, head width) of the tokens
    before it, to the token's hidden state (1, 1, width)."""

    mask: Tensor
    position: Tensor

    def __init__(self, llama: Any, tokens: int) -> None:
        super().__init__()
        self.llama = llama
        self.register_buffer("mask", torch.zeros(1, 1, 1, tokens + 1))
        self.register_buffer("position", torch.tensor([[tokens]]))

    def forward(self, word: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache()
        for layer in range(keys.shape[0]):
            cache.update(keys[layer], values[layer], layer)
        about = {"attention_mask": self.mask, "position_ids": self.position, "past_key_values": cache}
        out: Tensor = self.llama(input_ids=word, **about)[0]
        return out


def _prefill(sizes: dict[str, int], tokens: int) -> Example:
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = _Prefill(_llama(sizes), tokens).eval()
        return network, (torch.randint(0, sizes["vocab_size"], (1, tokens)),)


def _decode(sizes: dict[str, int], tokens: int) -> Example:
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = _DecodeStep(_llama(sizes), tokens).eval()
        width = sizes["hidden_size"] // sizes["num_attention_heads"]
        kept = (sizes["num_hidden_layers"], 1, sizes["num_key_value_heads"], tokens, width)
        return network, (torch.randint(0, sizes["vocab_size"], (1, 1)), torch.randn(kept), torch.randn(kept))


def prefill() -> Example:
    """The prefill of 128 tokens."""
    return _prefill(_SMALL, _TOKENS)


def decode() -> Example:
    """One decoding step after 127 tokens. Its products have one row: its time is that of reading 180 MB of weights."""
    return _decode(_SMALL, _TOKENS - 1)


def tiny_prefill() -> Example:
    """The prefill of 16 tokens with one layer, 64 wide: for rehearsals."""
    return _prefill(_TINY, _FEW_TOKENS)


def tiny_decode() -> Example:
    """One decoding step after 15 tokens with one layer, 64 wide: for rehearsals."""
    return _decode(_TINY, _FEW_TOKENS - 1)
