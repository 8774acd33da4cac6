"""Moves scales of an image's channels into the weights of the convolution that reads the image.

    conv(x * s, w)    ->    conv(x, w * s)

for one image and one scale for each channel, as squeeze-and-excitation computes them (EfficientNet, MobileNetV3,
RegNet), if the weights are smaller than the image. The image is then read once instead of twice, and not written again.
The weights are computed in each run of the network. Weights of 16 bits are not changed, as they are packed in pairs
when the network is compiled.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.networks.graph.ir.calls import is_call
from devices.networks.graph.ir.main_function import with_main_visited
from devices.networks.graph.ir.tensors import shape_of


def scale_weights(module: Any) -> Any:
    """Return ``module`` with scales moved into weights of float32."""
    scaled = with_main_visited(module, _ScaleMover(module))
    return relax.transform.DeadCodeElimination(["main"])(scaled)


@mutator
class _ScaleMover(PyExprMutator):  # type: ignore[misc]
    """Rewrites convolutions of scaled images as convolutions with scaled weights."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        main = module["main"]
        self._uses: Counter[Any] = Counter(relax.analysis.free_vars(main.body.body))
        for block in main.body.blocks:
            for binding in block.bindings:
                self._uses.update(relax.analysis.free_vars(binding.value))

    def visit_call_(self, call: Call) -> Any:
        given = call.args[0] if is_call(call, "relax.nn.conv2d") else None
        call = self.visit_expr_post_order(call)
        if given is None or self._uses[given] != 1 or int(call.attrs.groups) != 1:
            return call
        found = self._scaled(call)
        if found is None:
            return call
        image, scale = found
        weights, layout = call.args[1], str(call.attrs.kernel_layout)
        channels = tuple(prod(shape_of(scale) or ()) if each == "I" else 1 for each in layout)
        scale = self.builder_.emit(relax.op.reshape(scale, channels))
        scaled = self.builder_.emit(relax.op.multiply(weights, scale))
        return Call(call.op, [image, scaled], call.attrs, call.ty_args)

    def _scaled(self, call: Call) -> tuple[Any, Any] | None:
        """Return the image and the scales of its channels whose product a convolution reads. None if it reads anything
        else, or its weights are not smaller."""
        data, weights = call.args
        product = self.lookup_binding(data) if isinstance(data, relax.Var) else None
        shape = shape_of(data)
        if not isinstance(weights, GenericConst) or not is_call(product, "relax.multiply") or shape is None:
            return None
        if str(weights.ty.dtype) != "float32":
            return None
        per_channel = tuple(n if each == "C" else 1 for n, each in zip(shape, str(call.attrs.data_layout), strict=True))
        if shape[0] != 1 or prod(shape_of(weights) or ()) >= prod(shape):
            return None
        assert product is not None
        for image, scale in (product.args, reversed(product.args)):
            if shape_of(image) == shape and shape_of(scale) == per_channel and isinstance(scale, relax.Var):
                return image, scale
        return None
