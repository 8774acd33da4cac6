"""Networks of the papers that no package has, and the names of all that benchmarks tune."""

from __future__ import annotations

import ast

import torch
from torch import nn

from bench.networks.paper_networks import dcgan, lstm, randomise_norms
from bench.processes import ROOT


def test_the_generator_makes_an_image_of_each_number() -> None:
    network, (numbers,) = dcgan()
    with torch.inference_mode():
        image, other = network(numbers), network(numbers * (torch.arange(100) != 7))
    assert image.shape == (1, 3, 64, 64)
    assert not torch.equal(image, other)
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.ConvTranspose2d)]
    assert [(each.in_channels, each.out_channels) for each in convolutions] == [
        (1024, 512),
        (512, 256),
        (256, 128),
        (128, 3),
    ]


def test_the_language_model_reads_from_left_to_right() -> None:
    network, (ids,) = lstm()
    changed = ids.clone()
    changed[0, 100] += 1 if ids[0, 100] == 0 else -1
    with torch.inference_mode():
        scores, other = network(ids), network(changed)
    assert scores.shape == (1, 128, 10_000)
    assert torch.equal(scores[:, :100], other[:, :100])
    assert not torch.allclose(scores[:, -1], other[:, -1])


def test_the_same_network_each_time() -> None:
    (one, inputs), (other, others) = dcgan(), dcgan()
    assert torch.equal(*inputs, *others)
    assert all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


def test_norms_of_all_kinds_get_statistics_and_nothing_else_changes() -> None:
    class Frozen(nn.Module):  # as DETR has it
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(8))
            self.register_buffer("running_var", torch.ones(8))

    network = nn.Sequential(nn.BatchNorm2d(8), Frozen(), nn.LayerNorm(8))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    randomise_norms(network)
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {f"{at}.{name}" for at in (0, 1) for name in ("running_mean", "running_var")}


SHARED = {
    "bert_tiny": {"bench/networks/public_networks.py", "examples/networks.py"},
    "mobilenet_v2": {"bench/networks/public_networks.py", "examples/networks.py"},
    "operators": {"bench/networks/gpu_kernels.py", "bench/networks/resnet18_operators.py"},
    "resnet18": {"bench/networks/dynamic_networks.py", "bench/networks/public_networks.py", "examples/networks.py"},
}
"""Names that several files have on purpose: an example needs no package for what torchvision or transformers has too,
and a network may have a dynamic batch."""


def test_every_network_has_a_name_in_one_file() -> None:
    """Benchmarks name a network by its file and function, and no module gives another's a second place."""
    places: dict[str, set[str]] = {}
    for path in [*sorted((ROOT / "bench" / "networks").glob("*.py")), ROOT / "examples" / "networks.py"]:
        tree = ast.parse(path.read_text())
        file = path.relative_to(ROOT).as_posix()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.returns is not None and not node.name.startswith("_"):
                if ast.unparse(node.returns) == "Example":
                    places.setdefault(node.name, set()).add(file)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if alias.asname is not None and alias.asname == alias.name:  # a name that is handed on
                        places.setdefault(alias.name, set()).add(file)
    assert {"dcgan", "lstm", "vgg16", "small_cnn"} <= set(places)
    assert {name: files for name, files in places.items() if len(files) > 1} == SHARED
