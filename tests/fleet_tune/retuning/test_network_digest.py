"""What makes a network of the service another one."""

from __future__ import annotations

import threading
from pathlib import Path

from fleet_tune.base.config.retune_file import load_retune
from fleet_tune.base.precision import Precision
from fleet_tune.retuning.children import ProcessStepRunner

TEXT = """\
folder = "kept"
[[network]]
name = "net"
path = "net.onnx"
calls_per_day = 1000
"""


def test_other_weights_and_another_precision_are_another_network(tmp_path: Path) -> None:
    file, network = tmp_path / "retune.toml", tmp_path / "net.onnx"
    file.write_text(TEXT)
    network.write_bytes(b"weights")
    config = load_retune(file)
    (asked,) = config.networks
    runner = ProcessStepRunner(config, threading.Event())
    as_it_is = runner.digest(asked)
    converted = runner.digest(asked.model_copy(update={"precision": Precision.INT8W}))
    assert as_it_is == runner.digest(asked) != converted
    of_rows, of_more, other_weights, other_typical = (
        runner.digest(asked.model_copy(update={"shapes": shapes, "shapes_weights": weights}))
        for shapes, weights in (("n=1..8", None), ("n=1..9", None), ("n=1..8", "n=8:1"), ("n=1..8", "n=4:1"))
    )
    assert of_rows == other_weights, "it is tuned for the same extent"
    assert len({as_it_is, of_rows, of_more, other_typical}) == 4
    network.write_bytes(b"others, of another length")
    assert runner.digest(asked) not in (as_it_is, converted)
