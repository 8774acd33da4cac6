"""Extents of the networks in :mod:`bench.networks.dynamic_networks`, and the frequency of each.

Importing this module loads no framework.
"""

from __future__ import annotations

from pathlib import PurePath

SHAPES = {
    # Most texts are short, and some are long: a log-normal distribution with a median of 40 tokens and a sigma of 1.
    # Each weight is that of all lengths that are nearest to its extent.
    "bert_four_layers": "tokens=1..512; "
    "tokens=1:0.003,6:0.068,14:0.172,28:0.256,56:0.257,111:0.164,223:0.069,512:0.011",
    # A server that takes all waiting images as a batch: mostly one image or a few.
    "resnet18": "n=1..16; n=1:0.4,2:0.2,3:0.1,4:0.1,6:0.07,8:0.06,12:0.04,16:0.03",
    # A text that grows token by token to its full length has each extent once.
    "llama_decode": "past=1..1023; past=1:1,147:1,293:1,439:1,585:1,731:1,877:1,1023:1",
    "tiny_layers": "n=1..64; n=1:0.3,2:0.2,3:0.1,5:0.1,12:0.1,24:0.1,47:0.05,64:0.05",
}
"""Bounds and weights of each function's dynamic dimension, as :func:`fleet_tune.base.shapes.shapes.parse_shapes` reads
them."""

_MODULE = "dynamic_networks.py"


def shapes_beside(model: str) -> str | None:
    """Return the bounds and weights of ``file.py:function``; None if the function is not in :data:`SHAPES` or the file
    is not called ``dynamic_networks.py``."""
    path, _, function = model.partition(":")
    return SHAPES.get(function) if PurePath(path).name == _MODULE else None
