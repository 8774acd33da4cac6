"""Convolutions, pooling and what undoes them."""

from __future__ import annotations

from typing import Any

from tests.helpers.onnx_forms.form import Form, data, positive, whole


def windows() -> list[Form]:
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
