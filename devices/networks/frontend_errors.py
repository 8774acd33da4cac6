"""Errors of the frontends of TVM, torch and ONNX in the user's words, and suppression of their output."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from devices.error_text import brief
from fleet_tune.base.errors import UnsupportedNetworkError


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Suppress the frontends' warnings and progress prints: they name things inside TVM and torch."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


OTHER_OPERATORS = (
    "write it with other operators (docs/generated/operators.md lists those of ONNX), or export it for another opset"
)


def unsupported_error(
    error: Exception,
    where: str,
    unknown: Sequence[str] = (),
    node: str = "",
    say: Callable[[Any], str] = lambda node: str(node.target),
) -> UnsupportedNetworkError:
    """Return the error that reports a frontend's exception in the user's words, with the operators at fault.

    Args:
        error: the exception.
        where: name of the network.
        unknown: operators without a translation.
        node: the ONNX node at fault.
        say: gives the user's words for a node of a torch program.
    """
    next_step = "replace it in the network by operators that TVM's frontend knows"
    if unknown:
        names = ", ".join(unknown)
        return UnsupportedNetworkError(f"{where} uses operators that cannot be imported: {names}", next_step)
    if node:
        return UnsupportedNetworkError(
            f"{where}: {node} is used in a way that cannot be imported: {brief(error)}", OTHER_OPERATORS
        )
    operator = _operator_in(error, say)
    if operator:
        if "depends on data" in str(error):
            next_step = "keep the shape: choose with torch.where, or multiply by the mask"
        return UnsupportedNetworkError(
            f"{where} uses the operator {operator} in a way that cannot be imported: {brief(error)}", next_step
        )
    return UnsupportedNetworkError(f"{where} cannot be imported: {brief(error)}", "simplify the network")


def _operator_in(error: BaseException, say: Callable[[Any], str]) -> str:
    """Return the operator of torch that a frontend was converting when it raised, read from the frames of its
    traceback."""
    operator = ""
    trace = error.__traceback__
    while trace is not None:
        node: Any = trace.tb_frame.f_locals.get("node")
        if hasattr(node, "target") and hasattr(node, "op"):
            operator = say(node)
        trace = trace.tb_next
    return operator


def failing_onnx_node(error: BaseException) -> Any:
    """Return the onnx.NodeProto that TVM's frontend was converting when it raised. None if it was converting no
    node."""
    found, trace = None, error.__traceback__
    while trace is not None:
        node = trace.tb_frame.f_locals.get("node")
        if trace.tb_frame.f_code.co_name == "_construct_nodes" and hasattr(node, "op_type"):
            found = node
        trace = trace.tb_next
    return found
