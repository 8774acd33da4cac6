"""Pruner's hardware-aware symbols, penalties and symbol-based analyzer (section 4.1), as published.

Symbols of a statement, each of shape ``(n,)``:

====  =============  ====================================  =============================================
S     paper          CUDA                                  CPU
====  =============  ====================================  =============================================
S1    L0MemAlloc     32-bit registers of a thread          vector registers: accumulators and operands
S2    L0CompCount    operations of a thread for one step   vector operations for one reduction step
S3    L1MemAlloc     bytes of shared memory of a block     bytes of the nest between registers and L2
S4    L1ParaInfo     threads of a block                    iterations of the vectorised loop
S5    L2MemFootprint bytes moved from global memory        bytes moved into the per-core L2 cache
S6    L2ParaInfo     blocks of the grid                    parallel iterations
S7    L2TransDim     contiguous elements per transaction   contiguous elements per cache line fill
S8    L2CompCount    float operations of the statement     the same
S9    (tensor cores) tensor-core products of a block, for  0
                     one step of the reduction
====  =============  ====================================  =============================================

*m_l0 on CUDA.* A thread has at most 255 registers, and the threads of a block share those of a multiprocessor. TVM
tells the compiler how many threads there are (``__launch_bounds__``), and the compiler divides the registers among
them. Values beyond a thread's registers are spilled to memory: this is the "data transmission overhead" of section 4.1,
and such a kernel runs. A kernel that asks for more shared memory than m_l1 does not run.

*S9*, a symbol that "describes TensorCore resources utilization" (section 6.4), is not defined in the paper. Here it is
the number of 16x16x16 products (the WMMA instruction that the paper uses) that a block computes in one step. Its
penalty ``l0_t`` is the share of a multiprocessor's tensor cores that these products keep busy,
``S9 / (ceil(S9 / u) u)``, as ``l1_c`` is for schedulers and ``l2_c`` for multiprocessors. The peak of such a statement
is the maker's figure for the tensor cores (:mod:`devices.cuda.tensor_cores`). Neither was compared with measurements.

Penalties: every one lies in (0, 1], 1 is best, except ``l0_c``, which the paper leaves unbounded: ``1 + S2 / S1``. Only
its ratio between candidates matters. The paper prints a small 2 behind ``S_2``. This module does not read it as an
exponent: the paper calls the term a compute-to-memory ratio, and the released code (``feature_psa.cc``,
``psa_model.py``) has ``1 + operations / memory workload`` of a thread, without a square (it multiplies a time by a term
of its inverse). :mod:`policies.analysis.equation_1` has the other reading too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fleet_tune.base.domain import Arithmetic, DeviceAbstraction
from policies.arrays import Floats

ELEMENT_BYTES = 4
MEMORY_LINE_BYTES = {"cpu": 64, "cuda": 128}
"""Length of a memory transaction: a cache line, or a warp's coalesced load."""
WARP_SCHEDULERS = 4
"""Warps that a multiprocessor issues at the same time."""


@dataclass(frozen=True)
class Symbols:
    """S1 to S9 of one statement; see the table in the module's docstring."""

    s1: Floats
    s2: Floats
    s3: Floats
    s4: Floats
    s5: Floats
    s6: Floats
    s7: Floats
    s8: Floats
    s9: Floats


@dataclass(frozen=True)
class DeviceLimits:
    """Limits of a device that the penalties compare the symbols with."""

    m_l0: float
    """Registers of a thread or core."""
    m_l1: float
    """Bytes of shared memory or L1."""
    n_l1: float
    """Warp size or lanes."""
    pu_l1: float
    """Warps or vectors issued together."""
    pu_l2: float
    """Multiprocessors or cores."""
    n_l2: float
    """Elements of a memory transaction."""
    peak_flops: float
    """Peak in FLOP/s."""
    bandwidth_bytes: float
    """Bandwidth in bytes/s."""
    m_l0_together: float = math.inf
    """Registers of all threads of a block."""
    pu_tensor: float = 1.0
    """Tensor cores of a multiprocessor."""
    tensor_flops: float = 0.0
    """Peak of the tensor cores in FLOP/s."""


def limits(device: DeviceAbstraction, arithmetic: Arithmetic = "float32") -> DeviceLimits:
    """The limits of a device, with its peak for ``arithmetic``. A CUDA thread holds at most 255 registers; a CPU core
    works on one vector at a time."""
    cuda = device.kind == "cuda"
    return DeviceLimits(
        m_l0=255.0 if cuda else float(device.registers),
        m_l1=float(device.l1_bytes),
        n_l1=float(device.lanes),
        pu_l1=float(WARP_SCHEDULERS if cuda else 1),
        pu_l2=float(device.cores),
        n_l2=MEMORY_LINE_BYTES[device.kind] / ELEMENT_BYTES,
        peak_flops=device.peak(arithmetic),
        bandwidth_bytes=device.bandwidth_bytes,
        m_l0_together=float(device.registers) if cuda else math.inf,
        pu_tensor=float(device.tensor_cores or WARP_SCHEDULERS),
        tensor_flops=device.tensor_flops,
    )


@dataclass(frozen=True)
class Penalties:
    """The penalties of a statement, each ``(n,)``; all but ``l0_c`` lie in (0, 1], 1 is best."""

    l0_m: Floats
    """Registers."""
    l0_c: Floats
    """Operations of a step for each register (unbounded in the paper)."""
    l1_m: Floats
    """Shared memory or L1."""
    l1_c: Floats
    """Warps or vectors issued together."""
    alpha_l1: Floats
    """Waste of scheduling warps."""
    l2_m: Floats
    """Memory transactions."""
    l2_c: Floats
    """Multiprocessors or cores."""
    l0_t: Floats
    """Tensor cores of a multiprocessor."""


def utilisation(work: Floats, units: float) -> Floats:
    """Share of ``units`` busy while ``work`` equal items are done in rounds: ``w / (ceil(w / u) * u)``, in (0, 1]."""
    return np.asarray(work / (np.ceil(work / units) * units))


def registers_at_hand(symbols: Symbols, limit: DeviceLimits) -> Floats:
    """``m_l0`` of each candidate, ``(n,)``: the registers that each thread of its block can have."""
    return np.minimum(limit.m_l0, limit.m_l0_together / np.maximum(symbols.s4, 1.0))


def penalties(symbols: Symbols, limit: DeviceLimits) -> Penalties:
    """Penalties of section 4.1: capacity ``min(m / S, 1)``, parallel units and transactions by :func:`utilisation`."""
    blocks = np.ceil(symbols.s4 / limit.n_l1)
    return Penalties(
        l0_m=np.minimum(registers_at_hand(symbols, limit) / np.maximum(symbols.s1, 1.0), 1.0),
        l0_c=1.0 + symbols.s2 / np.maximum(symbols.s1, 1.0),
        l1_m=np.minimum(limit.m_l1 / np.maximum(symbols.s3, 1.0), 1.0),
        l1_c=utilisation(blocks, limit.pu_l1),
        alpha_l1=symbols.s4 / (blocks * limit.n_l1),
        l2_m=utilisation(symbols.s7, limit.n_l2),
        l2_c=utilisation(symbols.s6, limit.pu_l2),
        l0_t=np.where(symbols.s9 > 0, utilisation(np.maximum(symbols.s9, 1.0), limit.pu_tensor), 1.0),
    )


def statement_secs(symbols: Symbols, terms: Penalties, limit: DeviceLimits) -> tuple[Floats, Floats]:
    """Compute and memory latency of one statement: ``L_c = S8 / U_p`` and ``L_m = S5 / U_m``. Equation 1 sums them over
    all statements.

    ``U_p = T_p * P_l0c * P_l1c * alpha * P_l2c`` and ``U_m = T_m * P_l0m * P_l1m`` (capacity of the upper levels)
    ``* P_l2m``. On tensor cores ``T_p`` is the peak of the tensor cores, if known, times ``P_l0t``.
    """
    tensor = limit.tensor_flops or limit.peak_flops
    peak = np.where(symbols.s9 > 0, tensor, limit.peak_flops).astype(symbols.s8.dtype)
    compute = peak * terms.l0_c * terms.l1_c * terms.alpha_l1 * terms.l2_c * terms.l0_t
    memory = limit.bandwidth_bytes * terms.l0_m * terms.l1_m * terms.l2_m
    return symbols.s8 / compute, symbols.s5 / memory
