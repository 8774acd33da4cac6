"""Networks with a dynamic dimension and random weights, float32.

Each function returns ``(module, example inputs, dynamic_shapes)`` as torch.export takes them.
:mod:`bench.networks.dynamic_extents` has the frequency of each extent. All but :func:`tiny_layers` need ``pip install
torchvision transformers``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from bench.networks import public_networks
from bench.networks.torchvision_operators import load_or_define

Example = tuple[nn.Module, tuple[Tensor, ...], tuple[Any, ...]]

_SEED = 22
_SOME = 7
"""Extent of the example inputs. It may not be 0 or 1, because torch.export takes these for fixed."""


class _Encoder(nn.Module):
    """BERT without its pooling: token ids (1, tokens) to hidden states (1, tokens, width)."""

    def __init__(self, layers: int, **sizes: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(num_hidden_layers=layers, **sizes)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.vocabulary = config.vocab_size

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.bert(input_ids=ids)[0]
        return out


class _Step(nn.Module):
    """A step of decoding with a growing cache.

    Takes the id of one token (1, 1), and for each layer the keys and the values (1, heads, past, head width) of the
    ``past`` tokens before it. Returns the token's hidden state (1, 1, width), and for each layer the keys and the
    values of ``past + 1`` tokens.
    """

    def __init__(self, layers: int, **sizes: int) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaModel

        self.layers = layers
        self.config = LlamaConfig(num_hidden_layers=layers, attn_implementation="sdpa", **sizes)
        self.llama = LlamaModel(self.config)

    def cache(self, past: int) -> list[Tensor]:
        """Return random keys and values of ``past`` tokens for each layer, in the order of the inputs."""
        config: Any = self.config
        shape = (1, config.num_key_value_heads, past, config.hidden_size // config.num_attention_heads)
        return [torch.randn(shape) for _ in range(2 * self.layers)]

    def forward(self, word: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache()
        for layer in range(self.layers):
            cache.update(kept[2 * layer], kept[2 * layer + 1], layer)
        position = torch.full((1, 1), kept[0].shape[2], dtype=torch.long)
        out: Tensor = self.llama(input_ids=word, past_key_values=cache, position_ids=position)[0]
        grown: Any = [getattr(layer, of) for layer in cache.layers for of in ("keys", "values")]
        return (out, *grown)


def llama_step(layers: int, most_past: int, **sizes: int) -> Example:
    """One decoding step of a Llama after 1 to ``most_past`` tokens. ``sizes``: settings of LlamaConfig."""
    load_or_define()  # transformers imports torchvision if it is installed
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = _Step(layers, **sizes).eval()
        kept = network.cache(_SOME)
        word = torch.randint(0, sizes["vocab_size"], (1, 1))
    past = Dim("past", min=1, max=most_past)
    return network, (word, *kept), ({}, tuple({2: past} for _ in kept))


def bert_four_layers() -> Example:
    """transformers' BERT with four layers, 256 wide, on one text of 1 to 512 tokens."""
    load_or_define()
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = _Encoder(4, hidden_size=256, num_attention_heads=4, intermediate_size=1024).eval()
        ids = torch.randint(0, network.vocabulary, (1, _SOME))
    return network, (ids,), ({1: Dim("tokens", min=1, max=512)},)


def resnet18() -> Example:
    """torchvision's ResNet-18 on 1 to 16 images of 224x224."""
    network, (image,) = public_networks.resnet18()
    return network, (image.repeat(_SOME, 1, 1, 1),), ({0: Dim("n", min=1, max=16)},)


def llama_decode() -> Example:
    """One decoding step of transformers' Llama with four layers, 512 wide, after 1 to 1023 tokens."""
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "vocab_size": 1000}
    return llama_step(4, 1023, **sizes, num_attention_heads=8, num_key_value_heads=8)


def tiny_layers() -> Example:
    """Two linear layers on 1 to 64 rows of 32 numbers, for tests and rehearsals."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        network = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16)).eval()
        rows = torch.randn(_SOME, 32)
    return network, (rows,), ({0: Dim("n", min=1, max=64)},)
