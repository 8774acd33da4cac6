"""Text of a compiled decoder: the prompt with an empty cache, then one token after another, as the framework's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from bench.networks.torchvision_operators import load_or_define
from devices.networks.compiled.network_folder import CompiledNetwork, compile_network, load
from devices.networks.frontend import load_network
from devices.networks.input_shapes import NetworkInputError
from devices.networks.tasks.lowering import import_network
from examples import generate_text
from examples.generate_text import ENTRY_POINTS, PROMPT, empty_cache, generate, in_torch
from fleet_tune.base.shapes.shapes import parse_shapes
from tests.devices.networks.dynamic.test_decoding import CPU, Layer

COUNT, LAYERS, HEADS, SHARED, WIDTH = 12, 2, 4, 2, 16


class Decoder(nn.Module):
    """Embeddings, layers of attention and of products, and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(1000, HEADS * WIDTH), nn.Embedding(64, HEADS * WIDTH)
        self.layers = nn.ModuleList(Layer(HEADS, SHARED, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(HEADS * WIDTH, 1000)

    def forward(self, tokens: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        new, before = tokens.shape[1], past[0].shape[2]
        places = torch.arange(new) + before
        x, grown = self.tokens(tokens) + self.places(places), []
        seen = torch.arange(before + new) <= places[:, None]
        for layer, keys, values in zip(self.layers, past[::2], past[1::2], strict=True):
            x, keys, values = layer(x, keys, values, seen)
            grown += [keys, values]
        return self.head(x), *grown


def decoder() -> tuple[nn.Module, tuple[Tensor, ...], Any]:
    torch.manual_seed(0)
    past = [torch.randn(1, SHARED, 5, WIDTH) for _ in range(2 * LAYERS)]
    new, before = Dim("tokens", min=1, max=16), Dim("past", min=0, max=47)
    return Decoder().eval(), (torch.randint(1000, (1, 4)), *past), ({1: new}, tuple({2: before} for _ in past))


def without_cache(module: nn.Module, prompt: tuple[int, ...], count: int) -> list[int]:
    """Return the tokens as torch finds them from the whole text each time."""
    text = list(prompt)
    nothing = [torch.from_numpy(each) for each in empty_cache(LAYERS, SHARED, WIDTH)]
    with torch.no_grad():
        for _ in range(count):
            text.append(int(module(torch.tensor([text]), *nothing)[0][0, -1].argmax()))
    return text[len(prompt) :]


def compiled(spec: Any, folder: Path) -> CompiledNetwork:
    lowered = import_network(load_network(spec, shapes=parse_shapes(ENTRY_POINTS)), CPU)
    assert not lowered.left_out
    names = [each.name_hint for each in lowered.module.functions]
    assert any("attention" in each for each in names)
    assert not any("softmax" in each for each in names)
    return load(compile_network(lowered, {}, folder))


def test_a_decoder_generates_what_torch_generates(tmp_path: Path) -> None:
    spec = decoder()
    run = compiled(spec, tmp_path)
    lengths: list[tuple[int, int]] = []

    def noted(tokens: Any, *cache: Any) -> Any:
        lengths.append((tokens.shape[1], cache[0].shape[2]))
        return run(tokens, *cache)

    found = generate(noted, noted, PROMPT, COUNT, empty_cache(LAYERS, SHARED, WIDTH))
    assert found == without_cache(spec[0], PROMPT, COUNT)
    assert len(set(found)) > 3, "not the same token again and again"
    assert lengths == [(len(PROMPT), 0), *((1, len(PROMPT) + at) for at in range(COUNT - 1))]


def test_entry_points_take_their_part_of_the_range(tmp_path: Path) -> None:
    network = compiled(decoder(), tmp_path)
    caches = [np.zeros((1, SHARED, rows, WIDTH), np.float32) for rows in (0, 3)]
    calls = {"prompt": ((1, 4), 0), "step": ((1, 1), 1)}
    for name, (tokens, rows) in calls.items():
        given = np.ones(tokens, np.int64), *[caches[rows]] * (2 * LAYERS)
        for mine, expected in zip(network.entry_point(name)(*given), network(*given), strict=True):
            np.testing.assert_array_equal(mine, expected)
    with pytest.raises(NetworkInputError, match="step takes tokens=1, and tokens = 4 is given"):
        network.entry_point("step")(np.ones((1, 4), np.int64), *[caches[1]] * (2 * LAYERS))
    with pytest.raises(NetworkInputError, match="prompt takes past=0, and past = 3 is given"):
        network.entry_point("prompt")(np.ones((1, 4), np.int64), *[caches[1]] * (2 * LAYERS))
    with pytest.raises(NetworkInputError, match="the network takes 5"):
        network.entry_point("prompt")(np.ones((1, 4), np.int64))
    with pytest.raises(NetworkInputError, match="has no entry point 'steps': it has prompt, step"):
        network.entry_point("steps")


def test_torch_tensors_are_taken_too(tmp_path: Path) -> None:
    spec = decoder()
    run = compiled(spec, tmp_path)
    cache = [torch.from_numpy(each) for each in empty_cache(LAYERS, SHARED, WIDTH)]
    with torch.no_grad():
        for tokens in (torch.tensor([PROMPT]), torch.tensor([[7]])):
            ours, theirs = run(tokens, *cache), spec[0](tokens, *cache)
            for mine, expected in zip(ours, theirs, strict=True):
                torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)
            cache = list(ours[1:])


def test_the_decoder_of_transformers_generates_what_it_generates_in_torch(tmp_path: Path) -> None:
    load_or_define()  # torchvision, which transformers imports, may be of another build of torch
    pytest.importorskip("transformers")
    spec = generate_text.decoder()
    run = compiled(spec, tmp_path)
    cache = empty_cache(generate_text.LAYERS, generate_text.SHARED_HEADS, generate_text.WIDTH)
    found = generate(run.entry_point("prompt"), run.entry_point("step"), PROMPT, COUNT, cache)
    assert found == in_torch(spec[0], PROMPT, COUNT)
    assert len(set(found)) > 3


def test_the_example_says_that_transformers_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert generate_text.main([]) == 1
    assert "needs transformers" in capsys.readouterr().out


def test_the_example_loads_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = decoder()
    compiled(spec, tmp_path)
    monkeypatch.setattr(generate_text, "decoder", decoder)
    monkeypatch.setattr(generate_text, "WIDTH", WIDTH)
    monkeypatch.setattr(generate_text, "in_torch", lambda _, *given: without_cache(spec[0], *given))
    assert generate_text.main(["--out", str(tmp_path), "--tokens", "5"]) == 0
    assert "the same tokens" in capsys.readouterr().out
