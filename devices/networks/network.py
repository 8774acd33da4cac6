"""A network as every frontend returns it. Importing this module loads neither torch, onnx nor TVM."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by its name from here on
import numpy as np
import numpy.typing as npt

from devices.timing.arguments import is_float, numpy_dtype
from fleet_tune.base.errors import UserError
from fleet_tune.base.precision import Conversion, Precision
from fleet_tune.base.shapes.dimensions import Extents
from fleet_tune.base.shapes.extent_sums import ExtentSum
from fleet_tune.base.shapes.shapes import Shapes

Array = npt.NDArray[Any]

WeightedInputs = tuple[float, Sequence[Array]]
"""A weight and the inputs of a network that have it. The weight is how often they occur relative to other inputs."""

SEED = 0


EXAMPLE = "the network's own examples"
"""Origin of inputs that come with the network."""


@dataclass(frozen=True)
class Intermediate:
    """A value between the inputs and the outputs of a network."""

    name: str
    """Name in the framework's graph."""
    operator: str
    """The operator that computes it, its place in the network and its arguments, in words."""


class Framework(Protocol):
    """The framework that the network came from, which computes the reference outputs."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    def run(self) -> tuple[Array, ...]:
        """Return the outputs on the example inputs."""
        ...

    def spread(self) -> float:
        """Return the relative error between the framework's own two ways to compute a quantised network. ONNX Runtime
        computes in floats that are rounded in between, or in integers; torch computes with or without oneDNN. 0 if the
        framework has one way, or is not exact in integers."""
        ...

    def measure_secs(self, threads: int, repeats: int) -> float | None:
        """Return the median seconds per run; None if the framework's speed tells the user nothing."""
        ...

    def given(self, inputs: tuple[Array, ...]) -> Framework:
        """Return the same framework with other example inputs."""
        ...

    def intermediates(self) -> tuple[Intermediate, ...]:
        """Return the values that depend on the inputs, in the order of their computation."""
        ...

    def returning(self, values: Sequence[Intermediate], folder: Path) -> Network:
        """Return the network with ``values`` as its outputs. Its file is written into ``folder`` and needed as long as
        the network is used. Raises :class:`fleet_tune.base.errors.NetworkError`."""
        ...


@dataclass(frozen=True)
class Network:
    """A network that was read and translated."""

    name: str
    relax_module: Any = field(repr=False)
    """TVM IRModule whose function ``main`` takes the inputs and has the weights bound as constants."""
    example_inputs: tuple[Array, ...] = field(repr=False)
    """One array per input, in order."""
    input_names: tuple[str, ...]
    outputs: int
    fingerprint: str
    """Content hash of architecture and weights, equal in every process; it shows if an output folder belongs to another
    network."""
    framework: Framework = field(repr=False)
    inputs_from: str = EXAMPLE
    """Origin of the example inputs, in words. Empty if they are stand-ins of the right shapes and types."""
    conversion: Conversion | None = None
    """Conversion to another precision when the network is lowered. The user's options for it are part of the
    fingerprint."""
    shapes: Shapes | None = None
    """Its dynamic dimensions: their bounds, and how often each extent occurs. None for a network of fixed shapes. The
    bounds and the typical extents are part of the fingerprint. The other weights are not, as no task depends on
    them."""
    bounds: Shapes | None = None
    """Bounds of all dimensions that were dynamic when it was read, including those that were fixed to one extent. None
    if there were none."""
    input_shapes: tuple[tuple[int | str, ...], ...] = ()
    """Shapes of the inputs. An extent is a number, the name of a dynamic dimension, or the text of an
    :class:`fleet_tune.base.shapes.extent_sums.ExtentSum` of dynamic dimensions. Empty for a network of fixed shapes."""
    own_inputs: tuple[Array, ...] = field(default=(), repr=False)
    """The example inputs that came with a network of dynamic shapes. Empty if none did."""
    own_inputs_from: str = ""

    @property
    def extents(self) -> Extents:
        """The extents of the dynamic dimensions in the example inputs. Empty for a network of fixed shapes."""
        if self.shapes is None:
            return {}
        found = extents_of(self.input_shapes, self.example_inputs)
        return {each.name: min(found[each.name]) for each in self.shapes.dynamic}

    def at(self, extents: Extents) -> Network:
        """Return the same network on example inputs with other extents of its dynamic dimensions. It uses its own
        inputs if they have these extents, else made-up ones (see :mod:`devices.networks.input_ranges`).

        Raises ValueError for extents out of range, and for a network of fixed shapes.
        """
        if self.shapes is None or extents not in self.shapes:
            raise ValueError(f"{self.name} is not one of {self.shapes or 'dynamic shapes'} that takes {dict(extents)}")
        if extents == self.extents and self.inputs_from:
            return self
        own = extents_of(self.input_shapes, self.own_inputs) if self.own_inputs else {}
        if own and all(found == {ExtentSum.parse(text).at(extents)} for text, found in own.items()):
            return self.given(self.own_inputs, self.own_inputs_from)
        return self.with_made_up_inputs(extents)

    def fixed_module(self, extents: Extents | None = None) -> Any:
        """Return the Relax module with numbers for the dynamic dimensions: ``extents``, or those of the example inputs.
        A network of fixed shapes returns its own."""
        if self.shapes is None:
            return self.relax_module
        from devices.networks.symbolic_variables import with_bounds, with_variables

        bound = self.extents if extents is None else extents
        return with_bounds(with_variables(self.relax_module, bound), ())

    def with_made_up_inputs(self, extents: Extents | None = None) -> Network:
        """Return the same network on made-up example inputs (see :mod:`devices.networks.input_ranges`). If the
        framework's outputs on them are not finite, positive inputs are used, provided that these give finite outputs.
        ``extents``: extents of the dynamic dimensions; None for the extents of the example inputs."""
        from devices.networks.input_ranges import MADE_UP, example_inputs

        module = self.fixed_module(extents)
        first = self.given(example_inputs(module, draw=SEED), MADE_UP)
        if _gives_finite(first):
            return first
        second = self.given(example_inputs(module, positive=True, draw=SEED), f"{MADE_UP}, positive")
        return second if _gives_finite(second) else first

    def in_precision(self, precision: Precision | None, max_error: float | None = None) -> Network:
        """Return the same network, to be converted to ``precision``. None: the network itself. ``max_error``: the
        largest error that ``AUTO`` may make, see :class:`fleet_tune.base.precision.Conversion`."""
        if precision is None:
            return self
        conversion = Conversion(precision, max_error)
        return replace(self, conversion=conversion, fingerprint=f"{self.fingerprint}-{conversion.options}")

    def given(self, inputs: tuple[Array, ...], inputs_from: str) -> Network:
        """Return the same network on other example inputs."""
        framework = self.framework.given(inputs)
        return replace(self, example_inputs=inputs, framework=framework, inputs_from=inputs_from)

    def with_own(self, inputs: tuple[Array, ...], inputs_from: str) -> Network:
        """Return the same network on other example inputs, which are its own from now on."""
        network = self.given(inputs, inputs_from)
        return network if self.shapes is None else replace(network, own_inputs=inputs, own_inputs_from=inputs_from)

    def framework_outputs(self) -> tuple[Array, ...]:
        """Return the outputs of the network's own framework (PyTorch eager, ONNX Runtime) on the example inputs."""
        return self.framework.run()

    def measure_framework_secs(self, threads: int, repeats: int = 20) -> float | None:
        """Return the median seconds per run in the framework with ``threads`` threads; None if its speed tells the user
        nothing."""
        return self.framework.measure_secs(threads, repeats)


def network_of(
    name: str,
    module: Any,
    inputs: tuple[Array, ...],
    framework: Framework,
    names: tuple[str, ...] | None = None,
) -> Network:
    from tvm import relax

    main = module["main"]
    returned = main.ret_ty
    outputs = len(returned.fields) if isinstance(returned, relax.TupleType) else 1
    parameters = tuple(str(parameter.name) for parameter in main.params)
    return Network(
        name=re.sub(r"\W+", "_", name),
        relax_module=module,
        example_inputs=inputs,
        input_names=names or parameters,
        outputs=outputs,
        fingerprint=fingerprint(module),
        framework=framework,
    )


def _gives_finite(network: Network) -> bool:
    try:
        outputs = network.framework_outputs()
    except UserError:  # the check of the network reports it
        return True
    return all(bool(np.isfinite(array.astype(np.float64)).all()) for array in outputs)


def extents_of(shapes: Sequence[Sequence[int | str]], arrays: Sequence[Array]) -> dict[str, set[int]]:
    """Return the extents in ``arrays`` of each name and each sum of names in ``shapes``, by its text."""
    found: dict[str, set[int]] = {}
    for shape, array in zip(shapes, arrays, strict=True):
        for wanted, extent in zip(shape, array.shape, strict=True):
            if isinstance(wanted, str):
                found.setdefault(wanted, set()).add(extent)
    return found


def fingerprint(module: Any) -> str:
    """Return a content hash of an IRModule: its text, and the bytes of its constants in order of appearance."""
    from tvm import relax
    from tvm.ir import GenericConst

    from devices.builds.tensors import array_of

    digest = hashlib.blake2b(module.script(show_meta=False).encode(), digest_size=16)

    def add(expression: object) -> None:
        if isinstance(expression, GenericConst):
            array = array_of(expression.value)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)

    relax.analysis.post_order_visit(module["main"], add)
    return digest.hexdigest()


def example_array(shape: tuple[int, ...], dtype: str, index: int) -> Array:
    """Return a made-up input: normal floats, and 0 or 1 for integers, which are valid indices of any table."""
    generator = np.random.default_rng((SEED, index))
    if is_float(dtype):
        return np.asarray(generator.standard_normal(shape).astype(numpy_dtype(dtype)))
    return np.asarray(generator.integers(0, 2, shape).astype(dtype))
