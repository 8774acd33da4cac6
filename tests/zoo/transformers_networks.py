"""transformers' networks in small configurations, with random weights."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.catalogue import Example, Make, use_installed

_TOKENS, VOCABULARY = 64, 1000
_TEXT = {"vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
_WIDE = {**_TEXT, "intermediate_size": 512}
GROUPED = {**_WIDE, "num_key_value_heads": 2, "use_cache": False, "pad_token_id": 0, "max_position_embeddings": 128}
_IMAGE = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 384}


class Arranged(nn.Module):
    """A network of transformers as one of positional tensors in, a tuple of tensors out."""

    def __init__(self, network: nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.network, self.inputs, self.outputs = network, inputs, outputs

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        results = self.network(**dict(zip(self.inputs, values, strict=True)))
        return tuple(results[name] for name in self.outputs)


def built(model: str, config: str, **options: Any) -> nn.Module:
    use_installed()
    import transformers

    network: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**options))
    return network


def _ids() -> Tensor:
    return torch.randint(2, VOCABULARY, (1, _TOKENS))


def _mask() -> Tensor:
    return (torch.arange(_TOKENS) < _TOKENS - 9).long()[None]


def _text(model: str, config: str, outputs: tuple[str, ...] = ("last_hidden_state",), **options: Any) -> Example:
    """With a mask of padding, which the last nine tokens are."""
    network = built(model, config, **options)
    return Arranged(network, ("input_ids", "attention_mask"), outputs), (_ids(), _mask())


def _generator(model: str, config: str, **options: Any) -> Example:
    return Arranged(built(model, config, **options), ("input_ids",), ("logits",)), (_ids(),)


def _image(
    model: str, config: str, pixels: int = 64, outputs: tuple[str, ...] = ("last_hidden_state",), **options: Any
) -> Example:
    network = built(model, config, **options)
    return Arranged(network, ("pixel_values",), outputs), (torch.randn(1, 3, pixels, pixels),)


def _clip() -> Example:
    text = {**_WIDE, "projection_dim": 64, "max_position_embeddings": _TOKENS, "eos_token_id": 2}
    vision = {**_IMAGE, "image_size": 64, "patch_size": 16, "projection_dim": 64}
    network = built("CLIPModel", "CLIPConfig", text_config=text, vision_config=vision, projection_dim=64)
    arranged = Arranged(
        network, ("input_ids", "pixel_values", "attention_mask"), ("logits_per_image", "text_embeds", "image_embeds")
    )
    ids = torch.cat([_ids()[:, :-1].clamp(min=3), torch.full((1, 1), 2)], 1)
    return arranged, (ids, torch.randn(1, 3, 64, 64), torch.ones_like(ids))


def _whisper() -> Example:
    sizes = {"d_model": 128, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 256}
    rest = {"num_mel_bins": 40, "max_source_positions": 60, "decoder_layers": 1, "decoder_attention_heads": 4}
    use_installed()
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    encoder = WhisperEncoder(WhisperConfig(**sizes, **rest))
    return Arranged(encoder, ("input_features",), ("last_hidden_state",)), (torch.randn(1, 40, 120),)


def _wav2vec2() -> Example:
    sizes = {**_TEXT, "intermediate_size": 256, "conv_dim": (32, 32, 32), "conv_stride": (5, 2, 2)}
    rest = {"conv_kernel": (10, 3, 3), "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16}
    rest["num_conv_pos_embedding_groups"] = 4
    network = built("Wav2Vec2Model", "Wav2Vec2Config", **sizes, **rest)
    return Arranged(network, ("input_values",), ("last_hidden_state",)), (torch.randn(1, 1600),)


GPT2 = {"vocab_size": VOCABULARY, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128, "use_cache": False}
_OPT = {"vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 256}
T5 = {"vocab_size": VOCABULARY, "d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}
_SWIN = {"image_size": 64, "patch_size": 2, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
_SEGFORMER = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 40, 64], "decoder_hidden_size": 64}

_MAMBA = {"vocab_size": VOCABULARY, "hidden_size": 64, "state_size": 8, "num_hidden_layers": 2, "use_cache": False}

NETWORKS: dict[str, Make] = {
    "bert": functools.partial(_text, "BertModel", "BertConfig", ("last_hidden_state", "pooler_output"), **_WIDE),
    "bert_classifier": functools.partial(
        _text, "BertForSequenceClassification", "BertConfig", ("logits",), **_WIDE, num_labels=5
    ),
    "distilbert": functools.partial(
        _text,
        "DistilBertModel",
        "DistilBertConfig",
        vocab_size=VOCABULARY,
        dim=128,
        n_layers=2,
        n_heads=4,
        hidden_dim=512,
    ),
    "roberta": functools.partial(_text, "RobertaModel", "RobertaConfig", **_WIDE),
    "albert": functools.partial(_text, "AlbertModel", "AlbertConfig", **_WIDE, embedding_size=64),
    "electra": functools.partial(_text, "ElectraModel", "ElectraConfig", **_WIDE, embedding_size=64),
    "t5_encoder": functools.partial(_text, "T5EncoderModel", "T5Config", **T5),
    "gpt2": functools.partial(_generator, "GPT2LMHeadModel", "GPT2Config", **GPT2),
    "opt": functools.partial(
        _generator, "OPTForCausalLM", "OPTConfig", **_OPT, use_cache=False, word_embed_proj_dim=128
    ),
    "llama": functools.partial(_generator, "LlamaForCausalLM", "LlamaConfig", **GROUPED),
    "mistral": functools.partial(_generator, "MistralForCausalLM", "MistralConfig", **GROUPED, sliding_window=32),
    "qwen2": functools.partial(_generator, "Qwen2ForCausalLM", "Qwen2Config", **GROUPED),
    "qwen3": functools.partial(_generator, "Qwen3ForCausalLM", "Qwen3Config", **GROUPED, head_dim=32),
    "gemma": functools.partial(_generator, "GemmaForCausalLM", "GemmaConfig", **GROUPED, head_dim=32),
    "mixtral": functools.partial(_generator, "MixtralForCausalLM", "MixtralConfig", **GROUPED, num_local_experts=4),
    "mamba": functools.partial(_generator, "MambaForCausalLM", "MambaConfig", **_MAMBA),
    "phi": functools.partial(_generator, "PhiForCausalLM", "PhiConfig", **GROUPED),
    "vit": functools.partial(_image, "ViTModel", "ViTConfig", **_IMAGE, image_size=64, patch_size=16),
    "deit": functools.partial(_image, "DeiTModel", "DeiTConfig", **_IMAGE, image_size=64, patch_size=16),
    "dinov2": functools.partial(
        _image,
        "Dinov2Model",
        "Dinov2Config",
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=3,
        image_size=70,
        patch_size=14,
        pixels=70,
    ),
    "swin": functools.partial(_image, "SwinModel", "SwinConfig", **_SWIN),
    "convnext": functools.partial(
        _image, "ConvNextModel", "ConvNextConfig", depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 128]
    ),
    "segformer": functools.partial(
        _image, "SegformerForSemanticSegmentation", "SegformerConfig", outputs=("logits",), **_SEGFORMER
    ),
    "clip": _clip,
    "whisper_encoder": _whisper,
    "wav2vec2": _wav2vec2,
}
