"""Makes a quantised ONNX network and its example inputs from a torch module, as users of ONNX Runtime do.

``python -m bench.networks.quantise bench/networks/public_networks.py:resnet18 resnet18.int8.onnx`` writes
``resnet18.int8.onnx`` and ``resnet18.int8.npz``. The quantiser is that of onnxruntime: static, QDQ, one scale for each
output channel of the weights, uint8 activations, int8 weights. ``--dynamic`` quantises activations at run time instead.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import onnx
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from bench.peers.example import load_example

_SAMPLES = 8


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    """Random inputs for the calibration: normally distributed numbers, or the examples' integers in random order."""

    def __init__(self, names: list[str], examples: tuple[torch.Tensor, ...]) -> None:
        self._samples = self._drawn(names, examples)

    @staticmethod
    def _drawn(names: list[str], examples: tuple[torch.Tensor, ...]) -> Iterator[dict[str, np.ndarray]]:
        random = np.random.default_rng(0)
        for _ in range(_SAMPLES):
            yield {
                name: random.standard_normal(example.shape, np.float32)
                if example.is_floating_point()
                else random.permuted(example.numpy())
                for name, example in zip(names, examples, strict=True)
            }

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)


def quantise(spec: str, out: Path, dynamic: bool = False) -> None:
    """Write the quantised network of ``file.py:function`` to ``out``, and its example inputs beside it."""
    module, inputs = load_example(spec)
    quantise_module(module, inputs, out, dynamic=dynamic)
    np.savez(out.with_suffix(".npz"), *(tensor.numpy() for tensor in inputs))


def quantise_module(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], out: Path, *, dynamic: bool = False, qdq: bool = True
) -> None:
    """Quantise a module and write it to ``out``. ``dynamic``: activations are quantised at run time. ``qdq``: a static
    network has QuantizeLinear and DequantizeLinear nodes, else nodes such as QLinearConv."""
    names = [f"input{index}" for index in range(len(inputs))]
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as text:
        plain, prepared = Path(text) / "plain.onnx", Path(text) / "prepared.onnx"
        torch.onnx.export(module, inputs, str(plain), input_names=names, opset_version=18, dynamo=False)
        onnx.checker.check_model(str(plain))
        quant_pre_process(str(plain), str(prepared), skip_symbolic_shape=True)
        if dynamic:
            quantize_dynamic(str(prepared), str(out), weight_type=QuantType.QInt8)
        else:
            quantize_static(
                str(prepared),
                str(out),
                _Samples(names, inputs),
                quant_format=QuantFormat.QDQ if qdq else QuantFormat.QOperator,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--dynamic", is_flag=True, help="Quantise activations at run time.")
def main(model: str, out: Path, dynamic: bool) -> None:
    """Quantise MODEL (file.py:function) into the ONNX file OUT."""
    quantise(model, out, dynamic)
    click.echo(f"{out} and {out.with_suffix('.npz').name}")


if __name__ == "__main__":
    main()
