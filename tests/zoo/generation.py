"""One step of networks that generate text or sound, as people export them: the caches of keys and values go in and
out."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from tests.zoo.catalogue import Example, Make
from tests.zoo.transformers_networks import GPT2, GROUPED, T5, VOCABULARY, built

_PAST = 12


class _Step(nn.Module):
    """A decoder's next token: ids, a mask over past and present, positions and every layer's keys and values go in; the
    logits and the longer keys and values go out."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor, mask: Tensor, positions: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        from transformers import DynamicCache

        torch._check(mask.shape[1] == ids.shape[1] + past[0].shape[2])
        cache = DynamicCache()
        for at in range(0, len(past), 2):
            cache.update(past[at], past[at + 1], at // 2)
        result = self.network(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        return result.logits, *_values(result.past_key_values)


def _values(cache: Any) -> list[Tensor]:
    return [value for layer in cache.layers for value in (layer.keys, layer.values)]


def _step(model: str, config: str, heads: int, width: int, new: int = 1, **options: Any) -> Example:
    """With three tokens of padding before the past. ``new``: tokens of the step."""
    network = built(model, config, **options)
    past = tuple(torch.randn(1, heads, _PAST, width) for _ in range(4))
    mask = (torch.arange(_PAST + new) >= 3).long()[None]
    positions = torch.arange(_PAST - 3, _PAST - 3 + new)[None]
    return _Step(network), (torch.randint(2, VOCABULARY, (1, new)), mask, positions, *past)


class _FixedCacheStep(nn.Module):
    """A step whose cache has a fixed length: the new keys and values are written at a position that is an input."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor, position: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        from transformers import StaticCache

        length = past[0].shape[2]
        cache = StaticCache(config=self.network.config, max_cache_len=length)
        for at, layer in enumerate(cache.layers):
            layer.lazy_initialization(past[2 * at], past[2 * at + 1])
            layer.keys, layer.values = past[2 * at].clone(), past[2 * at + 1].clone()
            layer.cumulative_length = position.clone()
        seen = (torch.arange(length) <= position)[None, None, None]
        result = self.network(
            input_ids=ids, attention_mask=seen, position_ids=position[None], past_key_values=cache, use_cache=True
        )
        return result.logits, *_values(cache)


def _fixed_cache_step(model: str, config: str, heads: int, **options: Any) -> Example:
    network = built(model, config, **options)
    past = tuple(torch.randn(1, heads, 24, 32) for _ in range(4))
    return _FixedCacheStep(network), (torch.randint(2, VOCABULARY, (1, 1)), torch.tensor([9]), *past)


def growing(model: str, config: str, heads: int, **options: Any) -> tuple[nn.Module, tuple[Tensor, ...], Any]:
    """Return a step of any number of tokens over a cache that is empty at first, inputs to trace it with, and its
    dynamic dimensions."""
    module, inputs = _step(model, config, heads, 32, 4, **options)
    tokens, past = Dim("tokens", min=1, max=32), Dim("past", min=0, max=63)
    return module.eval(), inputs, ({1: tokens}, {1: Dim.DYNAMIC}, {1: tokens}, tuple({2: past} for _ in inputs[3:]))


class _CrossStep(nn.Module):
    """A step of a decoder that also attends to an encoder's output, whose keys and values are in the cache."""

    def __init__(self, decoder: nn.Module, head: nn.Module, layers: int) -> None:
        super().__init__()
        self.decoder, self.head, self.layers = decoder, head, layers

    def forward(self, ids: Tensor, encoded: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        from transformers import DynamicCache, EncoderDecoderCache

        own, cross = DynamicCache(), DynamicCache()
        for layer in range(self.layers):
            own.update(past[4 * layer], past[4 * layer + 1], layer)
            cross.update(past[4 * layer + 2], past[4 * layer + 3], layer)
        cache = EncoderDecoderCache(own, cross)
        result = self.decoder(input_ids=ids, encoder_hidden_states=encoded, past_key_values=cache, use_cache=True)
        return self.head(result.last_hidden_state), *_values(cache.self_attention_cache)


def _cross_past(heads: int, width: int, encoded: int) -> tuple[Tensor, ...]:
    return tuple(torch.randn(1, heads, length, width) for _ in range(2) for length in (_PAST, _PAST, encoded, encoded))


_WHISPER = {
    "d_model": 128,
    "encoder_layers": 1,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "num_mel_bins": 40,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 256,
    "max_source_positions": 60,
    "vocab_size": VOCABULARY,
    "max_target_positions": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def _whisper_step() -> Example:
    network: Any = built("WhisperForConditionalGeneration", "WhisperConfig", **_WHISPER)
    step = _CrossStep(network.model.decoder, network.proj_out, 2)
    return step, (torch.randint(3, VOCABULARY, (1, 1)), torch.randn(1, 60, 128), *_cross_past(4, 32, 60))


def _t5_step() -> Example:
    network: Any = built("T5ForConditionalGeneration", "T5Config", **T5, decoder_start_token_id=0)
    step = _CrossStep(network.decoder, network.lm_head, 2)
    return step, (torch.randint(3, VOCABULARY, (1, 1)), torch.randn(1, 20, 128), *_cross_past(4, 32, 20))


_CACHED = {**GROUPED, "use_cache": True}
DECODERS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", 4, {**GPT2, "use_cache": True}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", 2, _CACHED),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", 2, _CACHED),
}
"""Class, configuration, heads of keys, and options of each."""

NETWORKS: dict[str, Make] = {
    **{f"{name}_step": functools.partial(_step, *of[:3], 32, **of[3]) for name, of in DECODERS.items()},
    **{f"{name}_fixed_cache": functools.partial(_fixed_cache_step, *of[:3], **of[3]) for name, of in DECODERS.items()},
    "qwen3_chunk": functools.partial(
        _step, "Qwen3ForCausalLM", "Qwen3Config", 2, 32, 4, **{**GROUPED, "use_cache": True}, head_dim=32
    ),
    "whisper_step": _whisper_step,
    "t5_step": _t5_step,
}
