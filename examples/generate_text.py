"""Text from a small decoder, token by token, by a compiled network: ``python examples/generate_text.py --out FOLDER``.

The decoder is a Llama of transformers with random weights. It takes any number of new tokens, and the keys and values
of those before them, and returns the grown keys and values with its logits. So one compiled network reads the prompt
(the cache is empty, ``past`` is 0) and then takes one token after another. Both are its entry points. Each token is
the most likely one; the framework finds the same.

The network is tuned into ``--out`` for ``--seconds``, unless a compiled one is there already. Another decoder needs
another :func:`decoder`. The command line takes it too: ``fleet-tune tune examples/generate_text.py:decoder --shapes
"prompt: past=0; step: tokens=1"``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

VOCABULARY, LAYERS, HEADS, SHARED_HEADS, WIDTH = 1000, 2, 4, 2, 32
MOST_NEW, MOST_PAST = 64, 256
ENTRY_POINTS = "prompt: past=0; step: tokens=1"
PROMPT = (12, 345, 67, 890, 123)

Run = Callable[..., Any]
"""Takes the new tokens (1, new) and two tensors of each layer, keys and values (1, heads, past, width). Returns the
logits (1, new, vocabulary) and the tensors (1, heads, past + new, width)."""


class Step(nn.Module):
    """A causal language model of transformers as a function of tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Return the logits and the grown keys and values."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (keys, values) in enumerate(zip(past[::2], past[1::2], strict=True)):
            cache.update(keys, values, layer)
        result = self.model(input_ids=tokens, past_key_values=cache, use_cache=True)
        grown = result.past_key_values.layers
        return result.logits, *(each for layer in grown for each in (layer.keys, layer.values))


def decoder() -> tuple[nn.Module, tuple[Tensor, ...], Any]:
    """Return the decoder, inputs to trace it with, and its dynamic dimensions."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HEADS * WIDTH,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=SHARED_HEADS,
        max_position_embeddings=MOST_NEW + MOST_PAST,
        initializer_range=0.2,  # of the usual 0.02, random weights make all tokens equally likely
        bos_token_id=None,
        eos_token_id=None,
    )
    # torch.export takes extents of 0 and 1 for fixed: the inputs to trace it with have others.
    past = [torch.randn(1, SHARED_HEADS, 6, WIDTH) for _ in range(2 * LAYERS)]
    new, before = Dim("tokens", min=1, max=MOST_NEW), Dim("past", min=0, max=MOST_PAST)
    dynamic = ({1: new}, tuple({2: before} for _ in past))
    return Step(LlamaForCausalLM(config).eval()), (torch.randint(VOCABULARY, (1, 4)), *past), dynamic


def empty_cache(layers: int, heads: int, width: int) -> list[Any]:
    """Return the keys and values of no tokens."""
    return [np.zeros((1, heads, 0, width), np.float32) for _ in range(2 * layers)]


def generate(read: Run, step: Run, prompt: Sequence[int], count: int, cache: Sequence[Any]) -> list[int]:
    """Return ``count`` tokens after ``prompt``, each the most likely one. ``read`` takes the prompt, ``step`` one
    token."""
    logits, *cache = read(np.asarray([prompt], np.int64), *cache)
    found = [int(np.argmax(logits[0, -1]))]
    while len(found) < count:
        logits, *cache = step(np.asarray([found[-1:]], np.int64), *cache)
        found.append(int(np.argmax(logits[0, -1])))
    return found


def in_torch(step: Any, prompt: Sequence[int], count: int) -> list[int]:
    """Return the tokens that transformers generates with the model of a :class:`Step`."""
    given = torch.tensor([prompt])
    made = step.model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return [int(token) for token in made[0, len(prompt) :]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("generate-text"), help="folder of the compiled network")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long to tune")
    parser.add_argument("--tokens", type=int, default=20, help="how many tokens to generate")
    options = parser.parse_args(arguments)
    try:
        module, inputs, dynamic = decoder()
    except ImportError as error:
        print(f"the example needs transformers, which cannot be imported ({error}): pip install transformers")
        return 1
    import fleet_tune

    if not (options.out / "manifest.json").exists():
        fleet_tune.tune(
            (module, inputs, dynamic), out=options.out, time_budget_secs=options.seconds, shapes=ENTRY_POINTS
        )
    network = fleet_tune.load(options.out)
    cache = empty_cache(LAYERS, SHARED_HEADS, WIDTH)
    start = time.perf_counter()
    found = generate(network.entry_point("prompt"), network.entry_point("step"), PROMPT, options.tokens, cache)
    ours_secs = time.perf_counter() - start
    start = time.perf_counter()
    expected = in_torch(module, PROMPT, options.tokens)
    torch_secs = time.perf_counter() - start
    print(f"compiled: {found} in {ours_secs:.3f} s")
    print(f"PyTorch:  {expected} in {torch_secs:.3f} s")
    print("the same tokens" if found == expected else "other tokens: please report it")
    return 0 if found == expected else 1


if __name__ == "__main__":
    sys.exit(main())
