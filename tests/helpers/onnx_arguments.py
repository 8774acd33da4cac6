"""Single ONNX operators, each in forms that vary its attributes and optional inputs, in the versions where they
differ."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LATEST = 22
"""Version of the operators for which no older one is asked."""


@dataclass(frozen=True)
class Form:
    """One operator in one form."""

    operator: str
    inputs: tuple[Array | None, ...]
    """Inputs that the network gets; None for one that is left out."""
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = LATEST
    constants: tuple[Array | None, ...] = ()
    """Inputs behind those, which are constants of the network."""
    outputs: int = 1
    domain: str = ""
    means: Form | None = None
    """The same in a form that ONNX Runtime reads, of a version that it does not."""

    def __str__(self) -> str:
        shapes = "x".join(str(list(each.shape)) if each is not None else "-" for each in self.inputs)
        fixed = ", ".join(f"{each.tolist()}"[:40] if each is not None else "-" for each in self.constants)
        given = {**self.attributes, **({"constants": fixed} if fixed else {})}
        said = ", ".join(f"{name}={value}" for name, value in given.items())
        return f"{self.domain and self.domain + '.'}{self.operator}-{self.opset} {shapes} {said}"


def data(*shape: int, dtype: str = "float32") -> Array:
    """Return normal numbers, no two of which are equal."""
    return np.random.default_rng(sum(shape) + len(shape)).standard_normal(shape).astype(dtype)


def positive(*shape: int) -> Array:
    return np.abs(data(*shape)) + np.float32(0.1)


def whole(*numbers: Any) -> Array:
    """Return integers, as shapes, axes and places are given."""
    return np.asarray(numbers[0] if len(numbers) == 1 and isinstance(numbers[0], list) else numbers, np.int64)


def number(value: float, dtype: str = "float32") -> Array:
    return np.asarray(value, dtype)


def _element_wise() -> list[Form]:
    x, p = data(2, 3, 4), positive(2, 3, 4)
    plain = "Abs Atan Ceil Cos Cosh Elu Erf Exp Floor HardSigmoid HardSwish Identity LeakyRelu Mish Neg Reciprocal Relu"
    plain += " Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Tan Tanh Gelu ThresholdedRelu Celu IsNaN IsInf Shrink"
    forms = [Form(name, (x,)) for name in plain.split()]
    forms += [Form(name, (np.tanh(x) * np.float32(0.9),)) for name in ("Acos", "Asin", "Atanh")]
    forms += [Form("Acosh", (p + 1,)), Form("Asinh", (x,)), Form("Log", (p,)), Form("Sqrt", (p,))]
    forms += [
        Form("Elu", (x,), {"alpha": 0.5}),
        Form("Celu", (x,), {"alpha": 0.5}),
        Form("Gelu", (x,), {"approximate": "tanh"}),
        Form("HardSigmoid", (x,), {"alpha": 0.4}),
        Form("HardSigmoid", (x,), {"beta": 0.3}),
        Form("LeakyRelu", (x,), {"alpha": 0.3}),
        Form("Selu", (x,), {"alpha": 1.2}),
        Form("Selu", (x,), {"gamma": 0.7}),
        Form("Shrink", (x,), {"bias": 0.3}),
        Form("Shrink", (x,), {"lambd": 0.9, "bias": 0.2}),
        Form("ThresholdedRelu", (x,), {"alpha": 0.4}),
        Form("Swish", (x,), {"alpha": 1.5}, 24),
        Form(
            "IsInf", (np.where(x > 1, np.inf, np.where(x < -1, -np.inf, x)).astype("float32"),), {"detect_negative": 0}
        ),
        Form(
            "IsInf", (np.where(x > 1, np.inf, np.where(x < -1, -np.inf, x)).astype("float32"),), {"detect_positive": 0}
        ),
        Form("Clip", (x,), {"min": -0.5, "max": 0.8}, 6),
        Form("Clip", (x,), {"max": 0.8}, 6),
        Form("Clip", (x,), {"min": -0.5}, 6),
        Form("Clip", (x,), {}, 6),
        Form("Clip", (x,), constants=(number(-0.5),)),
        Form("Clip", (x,), constants=(None, number(0.8))),
        Form("Clip", (x, number(-0.5), number(0.8))),
        Form("Clip", (x,), constants=(number(0.8), number(-0.5))),
        Form("PRelu", (x,), constants=(data(4),)),
        Form("PRelu", (x,), constants=(data(3, 1),)),
        Form("PRelu", (x, data(2, 3, 4) / 2)),
        Form("PRelu", (x,), constants=(data(3),), opset=6),
        Form("Where", (x > 0, x, p)),
        Form("Where", (x[:1] > 0, x, p[:, :1])),
        Form("Cast", (x * 100,), {"to": 6}),
        Form("Cast", (x * 100,), {"to": 3}),
        Form("Cast", (x,), {"to": 9}),
        Form("Cast", (x,), {"to": 10}),
        Form("Cast", (x,), {"to": 11}),
        Form("CastLike", (x, whole(1))),
    ]
    for name in ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "Pow"]:
        forms.append(Form(name, (p, positive(3, 1))))
    for name in ["Max", "Min", "Mean", "Sum"]:
        forms += [Form(name, (x,)), Form(name, (x, data(4), data(3, 1)))]
        forms.append(Form(name, (x, p), opset=6))
    for name in ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"]:
        forms.append(Form(name, (x, data(3, 1)), opset=16))
        forms.append(Form(name, (x, data(2, 3, 4)), opset=16))
    for name in [
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "Less",
        "Greater",
        "And",
        "Or",
        "Xor",
    ]:  # an axis that broadcasts, as before opset 7
        of = (lambda value: value > 1) if name in ("And", "Or", "Xor") else np.asarray
        new = LATEST if name not in ("Less", "Greater") else 9
        for other, axis, seen in (((3,), 1, (3, 1)), ((4,), None, (4,)), ((2, 3), 0, (2, 3, 1)), ((2,), 0, (2, 1, 1))):
            left, right = of(p), of(positive(*other))
            settings = {"broadcast": 1, **({} if axis is None else {"axis": axis})}
            means = Form(name, (left, right.reshape(seen)), {}, new)
            forms.append(Form(name, (left, right), settings, 6, means=means))
    both = (np.int32([[1, 2], [3, 4]]), np.int32([2, 3]))
    forms.append(Form("Equal", both, {"broadcast": 1, "axis": 0}, 6, means=Form("Equal", (both[0], both[1][:, None]))))
    for name in ["And", "Or", "Xor"]:
        forms.append(Form(name, (x > 0, p > 1)))
    forms.append(Form("Not", (x > 0,)))
    a, b = whole([[7, -7, 5]]), whole([[3, 3, -3]])
    forms += [
        Form("Mod", (a, b)),
        Form("Mod", (a, b), {"fmod": 1}),
        Form("Mod", (x, p), {"fmod": 1}),
        Form("Div", (a, b)),
        Form("Pow", (a.astype("float32"), whole([2, 3, 2]))),
        Form("BitShift", (np.uint8([[7, 9, 200]]), np.uint8([[1, 2, 3]])), {"direction": "LEFT"}),
        Form("BitShift", (np.uint8([[7, 9, 200]]), np.uint8([[1, 2, 3]])), {"direction": "RIGHT"}),
        Form("Round", (np.float32([[0.5, 1.5, 2.5, -0.5, -1.5, 0.4]]),)),
        Form("Dropout", (x,)),
        Form("Dropout", (x,), {"ratio": 0.7}, 7),
        Form("Dropout", (x,), {"ratio": 0.7, "is_test": 1}, 6, means=Form("Identity", (x,))),
        Form("Dropout", (x,), {"seed": 3}, constants=(number(0.3),)),
    ]
    forms += [Form(f"Bitwise{name}", (a, b)) for name in ("And", "Or", "Xor")] + [Form("BitwiseNot", (a,))]
    return forms


def _reductions() -> list[Form]:
    forms: list[Form] = []
    for name in ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]:
        operator, late = f"Reduce{name}", 13 if name == "Sum" else 18
        x = positive(2, 3, 4) if name == "LogSum" else data(2, 3, 4)
        for opset in (7, 11, 12):
            forms.append(Form(operator, (x,), {"axes": [1]}, opset))
        forms += [
            Form(operator, (x,), {}, 11),
            Form(operator, (x,), {"keepdims": 0}, 11),
            Form(operator, (x,), {"axes": [0, -1], "keepdims": 0}, 11),
            Form(operator, (x,), {}, late),
            Form(operator, (x,), {"keepdims": 0}, late),
            Form(operator, (x,), {"keepdims": 0}, late, (whole(-1),)),
            Form(operator, (x,), {}, late, (whole(0, 2),)),
            Form(operator, (x,), {"noop_with_empty_axes": 1}, late),
            Form(operator, (x,), {"noop_with_empty_axes": 1}, late, (whole([]),)),
            Form(operator, (x,), {}, late, (whole([]),)),
            Form(operator, (x,), {"noop_with_empty_axes": 1, "keepdims": 0}, late, (whole(1),)),
        ]
        if name != "Sum":
            forms.append(Form(operator, (x,), {"axes": [1], "keepdims": 0}, 13))
    ties = np.round(data(2, 3, 4) * 1.5)
    for operator in ("ArgMax", "ArgMin"):
        forms += [
            Form(operator, (x,)),
            Form(operator, (x,), {"axis": -1}),
            Form(operator, (x,), {"axis": 1, "keepdims": 0}),
            Form(operator, (ties,), {"axis": 1, "select_last_index": 1}),
            Form(operator, (ties,), {"axis": 1, "select_last_index": 0}),
            Form(operator, (ties,), {"axis": 1}, 7),
            Form(operator, (ties,), {"axis": 1, "keepdims": 0, "select_last_index": 1}, 12),
        ]
    y = data(2, 3, 4)
    for operator in ("Softmax", "LogSoftmax", "Hardmax"):
        forms += [Form(operator, (y,), {"axis": axis}) for axis in (0, 1, 2, -1)] + [Form(operator, (y,))]
        forms += [Form(operator, (y,), {"axis": axis}, 11) for axis in (0, 1, 2, -1, -2)] + [
            Form(operator, (y,), {}, 11)
        ]
        forms += [Form(operator, (y,), {"axis": axis}, 7) for axis in (0, 1, 2)] + [Form(operator, (y,), {}, 7)]
        forms += [Form(operator, (ties,), {"axis": 1}), Form(operator, (ties,), {"axis": 1}, 9)]
    forms += [
        Form("CumSum", (y,), {}, constants=(number(1, "int64"),)),
        Form("CumSum", (y,), {"exclusive": 1}, constants=(number(-1, "int64"),)),
        Form("CumSum", (y,), {"reverse": 1}, constants=(number(0, "int64"),)),
        Form("CumSum", (y,), {"reverse": 1, "exclusive": 1}, 11, (number(2, "int32"),)),
        Form("TopK", (y,), {}, constants=(whole(2),), outputs=2),
        Form("TopK", (y,), {"axis": 1}, constants=(whole(2),), outputs=2),
        Form("TopK", (y,), {"largest": 0}, constants=(whole(2),), outputs=2),
        Form("TopK", (ties,), {"axis": -1, "sorted": 1}, constants=(whole(3),), outputs=2),
        Form("TopK", (y,), {"axis": 1}, 10, (whole(2),), 2),
        Form("TopK", (y,), {"axis": 1, "k": 2}, 9, (), 2),
    ]
    return forms


def _windows() -> list[Form]:
    line, image, space = data(2, 4, 11), data(1, 4, 9, 10), data(1, 4, 5, 6, 7)
    forms: list[Form] = []
    for x in (line, image, space):
        rank = x.ndim - 2
        kernel, two, one = [3] * rank, [2] * rank, [1] * rank
        uneven = [2] * rank + [1] * rank
        for operator in ("AveragePool", "MaxPool", "LpPool"):
            base = {"kernel_shape": kernel}
            varied: list[dict[str, Any]] = [
                {}, {"strides": two}, {"pads": [1] * 2 * rank}, {"pads": uneven, "strides": two},
                {"auto_pad": "SAME_UPPER", "strides": two}, {"auto_pad": "SAME_LOWER", "strides": two},
                {"auto_pad": "VALID", "strides": two}, {"dilations": two}, {"ceil_mode": 1, "strides": two},
                {"ceil_mode": 1, "strides": two, "pads": [1] * 2 * rank}, {"dilations": two, "pads": uneven},
            ]  # fmt: skip
            if operator == "AveragePool":
                varied += [{"count_include_pad": 1, **each} for each in varied if "pads" in each or "ceil_mode" in each]
            if operator == "LpPool":
                varied += [{"p": 1}, {"p": 3}, {"p": 1, "pads": uneven}]
            forms += [Form(operator, (x,), {**base, **each}) for each in varied]
            old = [each for each in varied if "dilations" not in each and "ceil_mode" not in each]
            forms += [Form(operator, (x,), {**base, **each}, 7 if operator != "LpPool" else 2) for each in old[:4]]
        channels = x.shape[1]
        varied = [
            {}, {"strides": two}, {"pads": [1] * 2 * rank}, {"pads": uneven}, {"dilations": two},
            {"auto_pad": "SAME_UPPER", "strides": two}, {"auto_pad": "SAME_LOWER", "strides": two},
            {"auto_pad": "SAME_UPPER", "dilations": two}, {"auto_pad": "VALID"}, {"kernel_shape": kernel},
            {"group": 2}, {"group": 4, "pads": [1] * 2 * rank},
        ]  # fmt: skip
        for each in varied:
            group = each.get("group", 1)
            forms.append(Form("Conv", (x,), each, constants=(data(8, channels // group, *kernel), data(8))))
        forms.append(Form("Conv", (x, data(6, 4, *kernel))))
        varied = [
            {}, {"strides": two}, {"pads": one * 2}, {"pads": uneven, "strides": two}, {"dilations": two},
            {"strides": two, "output_padding": one}, {"group": 2}, {"group": 4, "strides": two},
            {"auto_pad": "SAME_UPPER", "strides": two}, {"auto_pad": "SAME_LOWER", "strides": two},
            {"auto_pad": "VALID", "strides": two}, {"strides": two, "output_shape": [2 * n for n in x.shape[2:]]},
            {"kernel_shape": kernel, "group": 2, "strides": two, "output_padding": one, "pads": one * 2},
        ]  # fmt: skip
        for each in varied:
            bias = data(each.get("group", 1) * 2)
            forms.append(Form("ConvTranspose", (x,), each, constants=(data(channels, 2, *kernel), bias)))
        forms += [Form(name, (x,), {}, 21) for name in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")]
        forms += [Form("GlobalLpPool", (x,), {"p": p}, 21) for p in (1, 3)]
    forms += [
        Form("MaxPool", (image,), {"kernel_shape": [3, 3], "storage_order": 1}, outputs=2),
        Form("MaxPool", (image,), {"kernel_shape": [2, 3], "strides": [2, 1]}, outputs=2),
        Form("AveragePool", (image,), {"kernel_shape": [2, 3], "count_include_pad": 1, "pads": [1, 2, 0, 1]}, 7),
        Form("DeformConv", (image, data(2, 4, 3, 3), data(1, 18, 7, 8) / 2)),
        Form("DeformConv", (image, data(2, 2, 3, 3), data(1, 36, 5, 6) / 2, data(2)),
             {"offset_group": 2, "group": 2, "dilations": [2, 2]}),
        Form("DeformConv", (image, data(2, 4, 3, 3), data(1, 18, 5, 5) / 2, data(2), positive(1, 9, 5, 5)),
             {"strides": [2, 2], "pads": [1] * 4, "kernel_shape": [3, 3]}),
        Form("MaxUnpool", (data(1, 1, 2, 2), whole([[[[0, 1], [2, 3]]]])),
             {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 2, 1]}),
        Form("MaxUnpool", (data(1, 1, 2, 2), whole([[[[5, 7], [13, 15]]]])),
             {"kernel_shape": [2, 2], "strides": [2, 2]}),
        Form("MaxUnpool", (data(1, 2, 2, 2), whole([[[[5, 7], [13, 15]], [[16, 18], [26, 31]]]])),
             {"kernel_shape": [2, 2], "strides": [2, 2]}),
        Form("MaxUnpool", (data(1, 1, 2, 2), whole([[[[6, 8], [16, 18]]]])),
             {"kernel_shape": [2, 2], "strides": [2, 2]}, constants=(whole(1, 1, 5, 5),)),
        Form("MaxUnpool", (data(1, 1, 2, 2), whole([[[[0, 1], [2, 3]]]])),
             {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        Form("Col2Im", (data(1, 4 * 3, 12),), {}, constants=(whole(4, 5), whole(2, 2))),
        Form("Col2Im", (data(1, 4 * 3, 9),), {"strides": [2, 2], "pads": [1, 1, 1, 1]},
             constants=(whole(4, 5), whole(2, 2))),
        Form("Col2Im", (data(1, 4 * 3, 6),), {"dilations": [2, 2]}, constants=(whole(4, 5), whole(2, 2))),
    ]  # fmt: skip
    return forms


def _resampling() -> list[Form]:
    image, forms = data(1, 2, 6, 7), []
    sizes, scales = whole(1, 2, 9, 12), np.float32([1, 1, 1.5, 2])
    for mode in ("nearest", "linear", "cubic"):
        places = "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric"
        for place in places.split():
            settings = {"mode": mode, "coordinate_transformation_mode": place}
            forms.append(Form("Resize", (image,), settings, 19, (None, None, sizes)))
            forms.append(Form("Resize", (image,), settings, 19, (None, None, whole(1, 2, 3, 4))))
            if place != "half_pixel_symmetric":
                forms.append(Form("Resize", (image,), settings, 11, (np.float32([]), scales)))
        crop = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0}
        region = np.float32([0, 0, 0.4, 0.6, 1, 1, 0.6, 1.3])
        forms.append(Form("Resize", (image,), crop, 19, (region, None, whole(1, 2, 3, 3))))
        if mode == "cubic":
            forms.append(Form("Resize", (image,), {"mode": mode, "cubic_coeff_a": -0.5}, 19, (None, None, sizes)))
        else:
            forms.append(Form("Resize", (image,), {"mode": mode}, 10, (scales,)))
    rounding = "round_prefer_floor round_prefer_ceil floor ceil"
    for nearest in rounding.split():
        for place in ("half_pixel", "asymmetric", "align_corners"):
            settings = {"mode": "nearest", "nearest_mode": nearest, "coordinate_transformation_mode": place}
            forms.append(Form("Resize", (image,), settings, 19, (None, None, sizes)))
            forms.append(Form("Resize", (image,), settings, 19, (None, np.float32([1, 1, 0.5, 0.7]))))
    forms += [
        Form("Resize", (image,), {"mode": "cubic", "exclude_outside": 1}, 19, (None, None, sizes)),
        Form("Resize", (image,), {"mode": "linear", "exclude_outside": 1}, 19, (None, None, whole(1, 2, 4, 5))),
        Form("Resize", (image,), {"mode": "linear", "axes": [2, 3]}, 19, (None, None, whole(9, 12))),
        Form("Resize", (image,), {"mode": "linear", "axes": [3, 2], "keep_aspect_ratio_policy": "not_larger"}, 19,
             (None, None, whole(9, 12))),
        Form("Resize", (image,), {"mode": "nearest", "keep_aspect_ratio_policy": "not_smaller", "axes": [2, 3]}, 19,
             (None, None, whole(9, 12))),
        Form("Resize", (image,), {"mode": "linear", "keep_aspect_ratio_policy": "not_larger"}, 19, (None, None, sizes)),
        Form("Resize", (image,),
             {"mode": "linear", "keep_aspect_ratio_policy": "not_smaller"}, 19, (None, None, sizes)),
        Form("Resize", (image,), {"mode": "linear"}, 19, (None, np.float32([1, 1, 1.3, 1.6]))),
        Form("Resize", (image,), {"mode": "cubic"}, 19, (None, np.float32([1, 1, 1.3, 1.6]))),
        Form("Resize", (data(2, 3, 8),), {"mode": "linear"}, 19, (None, None, whole(2, 3, 13))),
        Form("Resize", (data(1, 2, 4, 5, 6),), {"mode": "linear"}, 19, (None, None, whole(1, 2, 7, 8, 9))),
        Form("Resize", (data(6, 7),), {"mode": "linear"}, 19, (None, None, whole(9, 12))),
        Form("Resize", (data(2, 6, 7, 3),), {"mode": "linear"}, 19, (None, None, whole(2, 9, 12, 3))),
        Form("Upsample", (image,), {"mode": "nearest"}, 9, (np.float32([1, 1, 2, 3]),)),
        Form("Upsample", (image,), {"mode": "linear", "scales": [1.0, 1.0, 2.0, 3.0]}, 7),
        Form("Upsample", (image,), {"mode": "nearest", "scales": [1.0, 1.0, 1.5, 2.0]}, 7),
    ]  # fmt: skip
    grid = np.tanh(data(1, 5, 4, 2) * 2) * np.float32(1.2)
    for mode, old in (("linear", "bilinear"), ("nearest", "nearest"), ("cubic", "bicubic")):
        for padding in ("zeros", "border", "reflection"):
            for corners in (0, 1):
                settings = {"padding_mode": padding, "align_corners": corners}
                forms.append(Form("GridSample", (image, grid), {"mode": mode, **settings}, 20))
            forms.append(Form("GridSample", (image, grid), {"mode": old, "padding_mode": padding}, 16))
    solid = np.tanh(data(1, 3, 4, 5, 3) * 2) * np.float32(1.2)
    forms += [Form("GridSample", (data(1, 2, 4, 5, 6), solid), {"mode": mode}, 20) for mode in ("linear", "nearest")]
    boxes, batch = np.float32([[0, 0, 4, 5], [1.3, 0.7, 5.2, 4.9]]), whole(0, 0)
    for opset in (10, 16):
        forms += [
            Form("RoiAlign", (image, boxes, batch), {"sampling_ratio": 2, **each}, opset)
            for each in (
                {}, {"output_height": 3}, {"output_width": 2, "output_height": 2}, {"spatial_scale": 0.5},
                {"sampling_ratio": 3, "output_height": 2}, {"mode": "max"},
            )
        ]  # fmt: skip
    settings = {"sampling_ratio": 2, "output_height": 2, "output_width": 2}
    forms.append(
        Form("RoiAlign", (image, boxes, batch), {"coordinate_transformation_mode": "output_half_pixel", **settings})
    )
    rois = np.float32([[0, 0, 0, 4, 5], [0, 1, 1, 5, 4]])
    forms += [
        Form("MaxRoiPool", (image, rois), {"pooled_shape": [2, 2]}, 21),
        Form("MaxRoiPool", (image, rois * 2), {"pooled_shape": [2, 3], "spatial_scale": 0.5}, 21),
        Form("AffineGrid", (data(1, 2, 3),), {"align_corners": 0}, constants=(whole(1, 2, 4, 5),)),
        Form("AffineGrid", (data(1, 2, 3),), {"align_corners": 1}, constants=(whole(1, 2, 4, 5),)),
        Form("DepthToSpace", (data(1, 8, 2, 3),), {"blocksize": 2}),
        Form("DepthToSpace", (data(1, 8, 2, 3),), {"blocksize": 2, "mode": "CRD"}),
        Form("DepthToSpace", (data(1, 8, 2, 3),), {"blocksize": 2}, 9),
        Form("SpaceToDepth", (data(1, 2, 4, 6),), {"blocksize": 2}),
        Form("SpaceToDepth", (data(1, 2, 4, 6),), {"blocksize": 2, "mode": "CRD"}, 28),
        Form("CenterCropPad", (data(5, 8),), {}, constants=(whole(7, 4),)),
        Form("CenterCropPad", (data(2, 5, 8),), {"axes": [1, 2]}, constants=(whole(7, 4),)),
        Form("CenterCropPad", (data(2, 5, 8),), {"axes": [-1]}, constants=(whole(11),)),
    ]
    return forms


def _products_and_norms() -> list[Form]:
    x, image = data(2, 3, 4), data(2, 4, 3, 5)
    a, b, c = data(3, 4), data(4, 5), data(5)
    return [
        Form("Gemm", (a,), {}, constants=(b, c)),
        Form("Gemm", (a, b)),
        Form("Gemm", (a.T.copy(),), {"transA": 1}, constants=(b, c)),
        Form("Gemm", (a,), {"transB": 1}, constants=(b.T.copy(), c)),
        Form("Gemm", (a,), {"alpha": 0.5}, constants=(b, c)),
        Form("Gemm", (a,), {"beta": 0.5}, constants=(b, c)),
        Form("Gemm", (a,), {"beta": 0.0}, constants=(b, c)),
        Form("Gemm", (a,), {"alpha": 2.0, "beta": -1.0, "transB": 1}, constants=(b.T.copy(), data(3, 1))),
        Form("Gemm", (a,), {"broadcast": 1}, 6, (b, c)),
        Form("MatMul", (data(2, 3, 4), data(4, 5))),
        Form("MatMul", (data(4), data(4, 5))),
        Form("MatMul", (data(2, 3, 4), data(4))),
        Form("Einsum", (data(2, 3, 4), data(2, 4, 5)), {"equation": "bij,bjk->bik"}),
        Form("Einsum", (data(3, 3),), {"equation": "ii->i"}),
        Form("Einsum", (data(2, 3, 4),), {"equation": "bij->bj"}),
        Form("Einsum", (data(2, 3, 4), data(4, 5)), {"equation": "...j,jk->...k"}),
        Form("BatchNormalization", (image,), {}, constants=(positive(4), data(4), data(4), positive(4))),
        Form("BatchNormalization", (image,), {"epsilon": 0.5}, constants=(positive(4), data(4), data(4), positive(4))),
        Form("BatchNormalization", (image,), {"momentum": 0.2}, 9, (positive(4), data(4), data(4), positive(4))),
        Form(
            "BatchNormalization",
            (image,),
            {"is_test": 1, "epsilon": 0.1},
            6,
            (positive(4), data(4), data(4), positive(4)),
        ),
        Form(
            "BatchNormalization",
            (image,),
            {"spatial": 1, "epsilon": 0.1},
            7,
            (positive(4), data(4), data(4), positive(4)),
        ),
        Form("BatchNormalization", (data(2, 4),), {}, constants=(positive(4), data(4), data(4), positive(4))),
        Form("InstanceNormalization", (image,), {}, constants=(positive(4), data(4))),
        Form("InstanceNormalization", (image,), {"epsilon": 0.5}, constants=(positive(4), data(4))),
        Form("GroupNormalization", (image,), {"num_groups": 2}, 21, (positive(4), data(4))),
        Form("GroupNormalization", (image,), {"num_groups": 2, "epsilon": 0.5}, 21, (positive(4), data(4))),
        Form("GroupNormalization", (image,), {"num_groups": 4}, 21, (positive(4), data(4))),
        Form("GroupNormalization", (image,), {"num_groups": 2}, 18, (positive(2), data(2))),
        Form("GroupNormalization", (image,), {"num_groups": 2, "stash_type": 1}, 21, (positive(4), data(4))),
        Form("LayerNormalization", (x,), {}, constants=(positive(4), data(4))),
        Form("LayerNormalization", (x,), {"axis": 1}, constants=(positive(3, 4), data(3, 4))),
        Form("LayerNormalization", (x,), {"axis": 0}, constants=(positive(2, 3, 4),)),
        Form("LayerNormalization", (x,), {"axis": 1}, constants=(positive(4), data(4))),
        Form("LayerNormalization", (x,), {"epsilon": 0.5}, constants=(positive(4), data(4))),
        Form("LayerNormalization", (x,), {"stash_type": 1}, constants=(positive(4),), outputs=3),
        Form("RMSNormalization", (x,), {}, 23, (positive(4),)),
        Form("RMSNormalization", (x,), {"epsilon": 0.5}, 23, (positive(4),)),
        Form("RMSNormalization", (x,), {"axis": 1}, 23, (positive(3, 4),)),
        Form("RMSNormalization", (x,), {"stash_type": 1}, 23, (positive(4),)),
        Form("MeanVarianceNormalization", (image,)),
        Form("MeanVarianceNormalization", (image,), {"axes": [1, 3]}),
        Form("LpNormalization", (x,)),
        Form("LpNormalization", (x,), {"axis": 1}),
        Form("LpNormalization", (x,), {"p": 1}),
        Form("LRN", (image,), {"size": 3}),
        Form("LRN", (image,), {"size": 3, "alpha": 0.5}),
        Form("LRN", (image,), {"size": 3, "alpha": 0.5, "beta": 0.5}),
        Form("LRN", (image,), {"size": 3, "alpha": 0.5, "bias": 2.0}),
        Form("LRN", (image,), {"size": 2, "alpha": 0.5}),
        Form("LRN", (data(2, 4, 6),), {"size": 3, "alpha": 0.5}),
        Form("Det", (data(2, 3, 3),)),
    ]


def _indexing() -> list[Form]:
    x, forms = data(4, 5, 6), []
    forms += [Form("Gather", (x, whole([[0, -1], [2, 1]])), {"axis": axis}) for axis in (0, 1, 2, -1)] + [
        Form("Gather", (x, whole(0, 2)))
    ]
    forms += [
        Form("GatherElements", (x, whole([[[0, -1, 2]] * 2] * 4)), {"axis": 2}),
        Form("GatherElements", (x, whole([[[0, -1, 2]] * 2] * 3)), {"axis": 2}),
        Form("GatherElements", (x, whole([[[0, -1, 2]] * 2] * 3)), {"axis": 1}),
        Form("GatherElements", (x, whole([[[0, -1, 2]] * 2] * 3))),
        Form("GatherND", (x, whole([[0, 1], [3, -1]]))),
        Form("GatherND", (x, whole([[[0], [1]], [[3], [2]], [[0], [0]], [[1], [4]]])), {"batch_dims": 1}),
        Form("GatherND", (x, whole([[[[0], [1]]] * 5] * 4)), {"batch_dims": 2}),
    ]
    for opset in (11, 13, 16, 18):
        for axis in (0, 1, 2, -2):
            rows = np.random.default_rng(axis + 3).permuted(np.tile(np.arange(4)[:, None, None], (1, 2, 3)), axis=0)
            index = np.moveaxis(rows, 0, axis).copy()
            forms.append(Form("ScatterElements", (x, index, data(*index.shape)), {"axis": axis}, opset))
    rows = np.tile(np.arange(4)[:, None, None], (1, 5, 6))
    forms += [
        Form("ScatterElements", (x, rows, data(4, 5, 6))),
        Form("ScatterElements", (x, rows - 4, data(4, 5, 6))),
        Form("Scatter", (x, rows[:, :2, :3].copy(), data(4, 2, 3)), {}, 9),
        Form("Scatter", (x, np.tile(np.arange(5)[None, :, None], (2, 1, 3)), data(2, 5, 3)), {"axis": 1}, 9),
    ]
    double = whole([[[1, 1, 3]] * 2] * 2)
    for reduction in ("add", "mul", "max", "min"):
        opset = 16 if reduction in ("add", "mul") else 18
        for axis in (0, 1, 2):
            index = np.clip(double, 0, x.shape[axis] - 1)
            forms.append(
                Form("ScatterElements", (x, index, data(2, 2, 3)), {"axis": axis, "reduction": reduction}, opset)
            )
        forms.append(
            Form("ScatterND", (x, whole([[0, 1], [3, -1], [0, 1]]), data(3, 6)), {"reduction": reduction}, opset)
        )
    forms += [
        Form("ScatterND", (x, whole([[0, 1], [3, -1]]), data(2, 6))),
        Form("ScatterND", (x, whole([[[0], [2]]]), data(1, 2, 5, 6)), {}, 13),
        Form("ScatterND", (x, whole([[0, 1, 5], [3, 4, 0]]), data(2)), {"reduction": "none"}),
        Form("Slice", (x,), {}, constants=(whole(1, 0), whole(3, 5))),
        Form("Slice", (x,), {}, constants=(whole(1), whole(-1), whole(2))),
        Form("Slice", (x,), {}, constants=(whole(-1, 4), whole(-100, 0), whole(0, 2), whole(-1, -2))),
        Form("Slice", (x,), {}, constants=(whole(0), whole(2**62), whole(1), whole(2))),
        Form("Slice", (x,), {"axes": [1, 2], "starts": [1, -4], "ends": [4, 100]}, 9),
        Form("Slice", (x,), {"starts": [1, 1], "ends": [3, -1]}, 9),
        Form("Split", (x,), {"axis": 1}, 9, (), 5),
        Form("Split", (x,), {"axis": 2, "split": [1, 2, 3]}, 9, (), 3),
        Form("Split", (x,), {}, 9, (), 2),
        Form("Split", (x,), {"axis": -1}, 13, (whole(1, 2, 3),), 3),
        Form("Split", (x,), {"axis": 2}, 13, (), 3),
        Form("Split", (x,), {"axis": 2, "num_outputs": 4}, 18, (), 4),
        Form("Split", (x,), {"num_outputs": 2}, 18, (), 2),
        Form("Concat", (x, data(4, 2, 6)), {"axis": 1}),
        Form("Concat", (x, data(4, 5, 1)), {"axis": -1}),
        Form("Concat", (x, data(4, 2, 6)), {"axis": 1}, 4),
        Form("Concat", (data(2, 3), data(2, 3)), {}, 1, means=Form("Concat", (data(2, 3), data(2, 3)), {"axis": 1})),
        Form("Transpose", (x,)),
        Form("Transpose", (x,), {"perm": [1, 2, 0]}),
        Form("Flatten", (x,)),
        *(Form("Flatten", (x,), {"axis": axis}) for axis in (0, 2, 3, -1, -2)),
        Form("Flatten", (x,), {"axis": 2}, 9),
        Form("Reshape", (x,), {}, constants=(whole(5, -1),)),
        Form("Reshape", (x,), {}, constants=(whole(0, 0, 3, 2),)),
        Form("Reshape", (x,), {"allowzero": 1}, constants=(whole(5, 24),)),
        Form("Reshape", (x,), {"shape": [5, -1]}, 1),
        Form("Squeeze", (data(1, 3, 1, 2),)),
        Form("Squeeze", (data(1, 3, 1, 2),), {}, constants=(whole(-2),)),
        Form("Squeeze", (data(1, 3, 1, 2),), {"axes": [0]}, 11),
        Form("Squeeze", (data(1, 3, 1, 2),), {}, 11),
        Form("Unsqueeze", (x,), {}, constants=(whole(0, -1),)),
        Form("Unsqueeze", (x,), {"axes": [1, 3]}, 11),
        Form("Expand", (data(3, 1),), {}, constants=(whole(2, 3, 4),)),
        Form("Tile", (x,), {}, constants=(whole(1, 2, 3),)),
        Form("Tile", (x,), {}, 1, (number(2), number(1)), means=Form("Tile", (x, whole(1, 2, 1)))),
        Form("Cast", (x,), {"to": "INT32"}, 1, means=Form("Cast", (x,), {"to": 6})),
        Form("BatchNormalization", (data(2, 4, 3),), {"spatial": 0}, 7,
             (positive(4, 3), data(4, 3), data(4, 3), positive(4, 3))),
        Form("Trilu", (x,)),
        Form("Trilu", (x,), {"upper": 0}),
        Form("Trilu", (x,), {"upper": 0}, constants=(number(1, "int64"),)),
        Form("Trilu", (x,), {"upper": 1}, constants=(number(-2, "int64"),)),
        Form("EyeLike", (data(3, 4),), {"k": 1}),
        Form("CumProd", (x,), {"exclusive": 1}, 26, (number(1, "int64"),)),
        Form("CumProd", (x,), {"reverse": 1}, 26, (number(0, "int64"),)),
        Form("BitCast", (x,), {"to": 6}, 26),
        Form("OneHot", (whole(0, 2, -1),), {}, constants=(number(3, "int64"), np.float32([0.5, 2]))),
        Form("OneHot", (whole([[0, 2, -1]]),), {"axis": 0}, constants=(number(3, "int64"), np.float32([0.5, 2]))),
        Form("OneHot", (whole([[0, 2, -1]]),), {"axis": 1}, 9, (number(3, "int64"), np.float32([0.5, 2]))),
        Form("ReverseSequence", (data(4, 3), whole(1, 3, 4)), {}),
        Form("ReverseSequence", (data(3, 4), whole(1, 3, 4)), {"batch_axis": 0, "time_axis": 1}),
        Form("TensorScatter", (data(2, 5, 3), data(2, 2, 3)), {"axis": 1}, 24, (whole(1, 3),)),
        Form("TensorScatter", (data(2, 5, 3), data(2, 2, 3)), {"axis": 1, "mode": "circular"}, 24, (whole(1, 4),)),
    ]  # fmt: skip
    inside = np.float32(1.5)
    for mode in ("constant", "reflect", "edge"):
        for opset in (11, 13, 18, 21):
            forms.append(Form("Pad", (x,), {"mode": mode}, opset, (whole(1, 0, 2, 0, 3, 1), inside)))
        forms.append(Form("Pad", (x,), {"mode": mode, "pads": [1, 0, 2, 0, 3, 1], "value": 1.5}, 2))
        few = (whole(1, 2, 3, 2), None, whole(-1, 0)) if mode == "reflect" else (whole(1, 2, 3, 4), inside, whole(2, 0))
        forms.append(Form("Pad", (x,), {"mode": mode}, 18, few))
        forms.append(Form("Pad", (x,), {"mode": mode}, 18, (whole(-1, 0, 2, 0, -2, 1), inside)))
    forms += [
        Form("Pad", (x,), {"mode": "wrap"}, 19, (whole(1, 0, 2, 0, 3, 1),)),
        Form("Pad", (x,), {}, 18, (whole(1, 0, 2, 0, 3, 1),)),
        Form("Pad", (x,), {"paddings": [1, 0, 2, 0, 3, 1], "value": 2.0}, 1),
    ]
    return forms


def _quantised() -> list[Form]:
    x, forms = data(2, 3, 4), []
    steps, zeros = np.float32([0.1, 0.2, 0.05]), np.uint8([3, 100, 250])
    one, zero = number(0.05), np.uint8(120)
    for opset in (10, 13, 19, 21, 23):
        forms.append(Form("QuantizeLinear", (x,), {}, opset, (one, zero)))
        forms.append(Form("QuantizeLinear", (x,), {}, opset, (one,)))
        forms.append(Form("DequantizeLinear", (np.uint8(x * 20 + 100),), {}, opset, (one, zero)))
        if opset > 10:
            forms.append(Form("QuantizeLinear", (x,), {}, opset, (steps, zeros)))
            forms.append(Form("QuantizeLinear", (data(2, 4, 3),), {"axis": 2}, opset, (steps, zeros)))
            forms.append(Form("QuantizeLinear", (data(2, 4, 3),), {"axis": -1}, opset, (steps, zeros)))
            forms.append(Form("DequantizeLinear", (np.uint8(x * 20 + 100),), {"axis": -2}, opset, (steps, zeros)))
            forms.append(Form("DequantizeLinear", (np.int8(x * 20),), {"axis": 1}, opset, (steps,)))
    forms += [
        Form("QuantizeLinear", (x,), {"output_dtype": 3}, 21, (one,)),
        Form("QuantizeLinear", (x,), {"saturate": 0}, 19, (one, zero)),
        Form("DequantizeLinear", (np.int32(x * 20),), {}, 13, (one,)),
        Form("DynamicQuantizeLinear", (x,), outputs=3),
    ]
    return forms


_STEPS, _BATCH, _WIDTH, _HIDDEN = 3, 2, 4, 5


def _recurrent_form(
    operator: str,
    gates: int,
    attributes: dict[str, Any],
    ways: int = 1,
    more: tuple[Array | None, ...] = (),
    layout: int = 0,
) -> Form:
    x = data(_BATCH, _STEPS, _WIDTH) if layout else data(_STEPS, _BATCH, _WIDTH)
    weights = (data(ways, gates * _HIDDEN, _WIDTH) / 2, data(ways, gates * _HIDDEN, _HIDDEN) / 2)
    given = {"hidden_size": _HIDDEN, **attributes, **({"layout": 1} if layout else {})}
    constants = (*weights, data(ways, 2 * gates * _HIDDEN), *more)
    return Form(operator, (x,), given, LATEST, constants, 3 if operator == "LSTM" else 2)


def _recurrent() -> list[Form]:
    forms: list[Form] = []
    for operator, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        form = functools.partial(_recurrent_form, operator, gates)
        lengths = np.int32([3, 1])
        first = [data(1, _BATCH, _HIDDEN) / 2 for _ in range(2 if operator == "LSTM" else 1)]
        acts = {"RNN": ["Relu"], "GRU": ["HardSigmoid", "Softsign"], "LSTM": ["HardSigmoid", "Softsign", "Relu"]}[
            operator
        ]
        forms += [
            form({}), form({"direction": "reverse"}), form({"direction": "bidirectional"}, 2), form({"clip": 0.3}),
            form({"activations": acts}), form({}, 1, (lengths,)), form({"direction": "reverse"}, 1, (lengths,)),
            form({}, 1, (None, *first)),
            form({"activations": ["LeakyRelu", *acts[1:]], "activation_alpha": [0.3]}),
            form({"activations": ["HardSigmoid", *acts[1:]], "activation_alpha": [0.3], "activation_beta": [0.4]}),
            form({}, layout=1),
        ]  # fmt: skip
        if operator == "GRU":
            forms.append(form({"linear_before_reset": 1}))
        if operator == "LSTM":
            forms += [form({"input_forget": 1}), form({}, 1, (None, *first, data(1, 3 * _HIDDEN) / 2))]
    return forms


def _attention() -> list[Form]:
    q, k, v = data(1, 2, 3, 4), data(1, 2, 5, 4), data(1, 2, 5, 6)
    flat = (data(1, 3, 8), data(1, 5, 8), data(1, 5, 12))
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    mask = np.where(data(3, 5) > 0.5, np.float32(-1e4), np.float32(0))
    return [
        Form("Attention", (q, k, v), {}, 23),
        Form("Attention", (q, k, v), {"scale": 0.3}, 23),
        Form("Attention", (q, k, v), {"is_causal": 1}, 23),
        Form("Attention", (q, k, v), {"softcap": 2.0}, 23),
        Form("Attention", (q, k, v, mask), {}, 23),
        Form("Attention", flat, heads, 23),
        Form("Attention", (data(1, 3, 16), data(1, 5, 8), data(1, 5, 12)), {"q_num_heads": 4, "kv_num_heads": 2}, 23),
        Form("Attention", (q, k, v), {"softmax_precision": 1}, 23),
        Form("Attention", (q, k, v, mask, None, None), {"qk_matmul_output_mode": 0}, 23, (), 4),
        Form("RotaryEmbedding", (data(1, 2, 3, 4), data(1, 3, 2), data(1, 3, 2)), {}, 23),
        Form("RotaryEmbedding", (data(1, 2, 3, 4), data(1, 3, 2), data(1, 3, 2)), {"interleaved": 1}, 23),
        Form("RotaryEmbedding", (data(1, 2, 3, 4), data(1, 3, 1), data(1, 3, 1)), {"rotary_embedding_dim": 2}, 23),
        Form("RotaryEmbedding", (data(1, 3, 8), data(1, 3, 2), data(1, 3, 2)), {"num_heads": 2}, 23),
    ]


def _others() -> list[Form]:
    own = "com.microsoft"
    x, y = data(2, 3, 8), data(2, 3, 8)
    return [
        Form("DFT", (data(2, 8, 1),), {"axis": 1}, 17),
        Form("DFT", (data(2, 8, 1),), {"axis": 1, "onesided": 1}, 17),
        Form("DFT", (data(2, 8, 2),), {"axis": 1, "inverse": 1}, 17),
        Form("DFT", (data(2, 8, 2),), {"axis": 1}, 17, (number(5, "int64"),)),
        Form("DFT", (data(2, 8, 2),), {}, 20, (None, number(1, "int64"))),
        Form("STFT", (data(1, 12, 1),), {"onesided": 1}, 17, (number(4, "int64"), positive(6))),
        Form("STFT", (data(1, 12, 1),), {"onesided": 0}, 17, (number(4, "int64"), positive(6))),
        Form("FastGelu", (x,), constants=(data(8),), domain=own),
        Form("BiasGelu", (x,), constants=(data(8),), domain=own),
        Form("Gelu", (x,), domain=own),
        Form("SkipLayerNormalization", (x, y), {"epsilon": 0.1}, constants=(positive(8), data(8), data(8)), domain=own),
        Form("SkipLayerNormalization", (x, y), {}, constants=(positive(8),), domain=own),
        Form("FusedMatMul", (data(3, 4), data(5, 4)), {"transB": 1, "alpha": 0.5}, domain=own),
        Form("QuickGelu", (x,), {"alpha": 1.2}, domain=own),
        Form("GridSample", (data(1, 2, 4, 5), np.tanh(data(1, 3, 3, 2))),
             {"mode": "bicubic", "align_corners": 1}, domain=own),
        Form("Pad", (data(2, 3),), {"mode": "reflect"}, constants=(whole(1, 1, 1, 1),), domain=own),
        Form("Trilu", (x,), {"upper": 0}, domain=own),
        Form("Range", (), {}, constants=(number(1), number(7), number(2)), domain=own),
        Form("Attention", (x,), {"num_heads": 2}, constants=(data(8, 24), data(24)), domain=own),
        Form("RotaryEmbedding", (data(1, 3, 8), whole([[0, 1, 2]])), {"num_heads": 2},
             constants=(data(9, 2), data(9, 2)), domain=own),
        Form("QuantizeLinear", (x,), {}, constants=(number(0.05), np.uint8(100)), domain=own),
        Form("DequantizeLinear", (np.uint8(x * 20 + 100),), {}, constants=(number(0.05), np.uint8(100)), domain=own),
        Form("MatMulIntegerToFloat", (np.uint8(data(3, 4) * 9 + 99), np.uint8(data(4, 5) * 9 + 99)), {},
             constants=(number(0.1), number(0.2)), domain=own),
        Form("EmbedLayerNormalization", (np.int32([[0, 3, 1]]), np.int32([[0, 1, 1]])), {"epsilon": 0.1},
             constants=(data(5, 8), data(4, 8), data(2, 8), positive(8), data(8)), outputs=2, domain=own),
        Form("EmbedLayerNormalization", (np.int32([[0, 3, 1]]), np.int32([[0, 1, 1]])), {},
             constants=(data(5, 8), data(4, 8), data(2, 8), positive(8), data(8), np.int32([[1, 1, 0]])), outputs=2,
             domain=own),
        Form("Attention", (x,), {"num_heads": 2, "unidirectional": 1}, constants=(data(8, 24), data(24)), domain=own),
        Form("Attention", (x,), {"num_heads": 2, "scale": 0.2}, constants=(data(8, 24), data(24)), domain=own),
        Form("Attention", (x,), {"num_heads": 2}, constants=(data(8, 24), data(24), np.int32([2, 3])), domain=own),
        Form("Attention", (x,), {"num_heads": 2}, constants=(data(8, 24), data(24), np.int32([[1, 1, 0], [1, 1, 1]])),
             domain=own),
        Form("Attention", (x,), {"num_heads": 2, "mask_filter_value": -3.0},
             constants=(data(8, 24), data(24), np.int32([[1, 1, 0], [1, 1, 1]])), domain=own),
        Form("Attention", (x,), {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12]}, constants=(data(8, 28), data(28)),
             domain=own),
        Form("SkipLayerNormalization", (x, y), {}, constants=(positive(8), data(8), data(8)), outputs=4, domain=own),
    ]  # fmt: skip


FORMS: tuple[Form, ...] = (
    *_element_wise(), *_reductions(), *_windows(), *_resampling(), *_products_and_norms(), *_indexing(), *_quantised(),
    *_recurrent(), *_attention(), *_others(),
)  # fmt: skip
