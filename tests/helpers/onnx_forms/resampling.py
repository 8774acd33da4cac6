"""Resizing, sampling and cropping of images."""

from __future__ import annotations

import numpy as np

from tests.helpers.onnx_forms.form import Form, data, whole


def resampling() -> list[Form]:
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
