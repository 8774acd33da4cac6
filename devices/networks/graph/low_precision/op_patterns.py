"""Kinds of kernels by which TVM decides what it fuses: ``tvm.relax.op.op_attrs.OpPatternKind``.

A kernel has its kind as the attribute ``op_pattern``.
"""

from __future__ import annotations

BROADCAST = 1
"""Kernels that work element by element. Some operands may be smaller than the result."""
EPILOGUE_FUSABLE = 4
"""Kernels that element-wise operators after them are fused into. Nothing is fused with kernels of a higher kind."""
