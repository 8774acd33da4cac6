"""Precisions that a network of float32 may be converted to."""

from __future__ import annotations

import enum


class Precision(enum.StrEnum):
    """Precision of the products of a network (matrix products and convolutions)."""

    BF16 = "bf16"  # operands in bfloat16, sums in float32
    FP16 = "fp16"  # operands in float16, sums in float32
    INT8W = "int8w"  # constant weights in int8 with a scale for each output channel, everything else in float32
