"""Reading networks: the three forms, and every way in which the input can be wrong."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from devices.networks.frontend import load_network
from examples import networks
from fleet_tune.base.errors import NetworkError, UnsupportedNetworkError

ROOT = Path(__file__).resolve().parents[3]
NETWORKS = ROOT / "examples" / "networks.py"


def small_onnx(path: Path, batch: int | str = 1, operator: str = "Relu") -> Path:
    """A convolution with bias, batch norm, an activation, mean and a dense layer."""
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int, low: float = -0.5) -> onnx.TensorProto:
        return numpy_helper.from_array(generator.uniform(low, 0.5, shape).astype("float32"), name)

    nodes = [
        helper.make_node("Conv", ["image", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"], epsilon=1e-3),
        helper.make_node(operator, ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "d"], ["y"], transB=1),
    ]
    weights = [weight("w", 8, 3, 3, 3), weight("b", 8), weight("scale", 8), weight("shift", 8), weight("mean", 8)]
    weights += [weight("var", 8, low=0.1), weight("v", 5, 8), weight("d", 5)]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 5])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def python_file(folder: Path, body: str) -> Path:
    file = folder / "net.py"
    file.write_text("import torch\nfrom torch import nn\n" + textwrap.dedent(body))
    return file


def test_a_function_of_a_file() -> None:
    network = load_network(f"{NETWORKS}:mlp")
    module, inputs = networks.mlp()
    assert (network.name, network.input_names, network.outputs) == ("mlp", ("x",), 1)
    np.testing.assert_array_equal(network.example_inputs[0], inputs[0].numpy())
    with torch.no_grad():
        np.testing.assert_array_equal(network.framework_outputs()[0], module(*inputs).numpy())
    assert network.measure_framework_secs(threads=1, repeats=2) > 0  # type: ignore[operator]


def test_a_module_with_inputs() -> None:
    network = load_network((nn.Linear(3, 2), (torch.ones(1, 3),)))
    assert network.name == "Linear"
    assert network.framework_outputs()[0].shape == (1, 2)


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_net.py").write_text("WIDTH = 7\n")
    file = python_file(
        tmp_path,
        """
        from neighbour_of_net import WIDTH
        def net():
            return nn.Linear(WIDTH, 2), (torch.ones(1, WIDTH),)
        """,
    )
    assert load_network(f"{file}:net").example_inputs[0].shape == (1, 7)


def test_several_inputs_and_outputs() -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"sum": x + y, "product": x * y}

    network = load_network((Both(), (torch.ones(2), torch.full((2,), 3.0))))
    assert network.outputs == 2
    assert network.input_names == ("x", "y")
    assert [out.tolist() for out in network.framework_outputs()] == [[4.0, 4.0], [3.0, 3.0]]


def test_a_pt2_file(tmp_path: Path) -> None:
    module, inputs = networks.small_cnn()
    torch.export.save(torch.export.export(module, inputs), tmp_path / "cnn.pt2")
    network = load_network(tmp_path / "cnn.pt2")
    assert network.name == "cnn"
    with torch.no_grad():
        np.testing.assert_allclose(network.framework_outputs()[0], module(*inputs).numpy(), atol=1e-6)


def test_an_onnx_file(tmp_path: Path) -> None:
    network = load_network(small_onnx(tmp_path / "net.onnx"))
    assert (network.name, network.input_names, network.outputs) == ("net", ("image",), 1)
    assert network.example_inputs[0].shape == (1, 3, 16, 16)
    assert network.framework_outputs()[0].shape == (1, 5)
    assert network.measure_framework_secs(threads=1, repeats=2) > 0  # type: ignore[operator]
    assert network.framework.name == "ONNX Runtime"


def test_the_reference_of_onnx_without_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = load_network(small_onnx(tmp_path / "net.onnx"))
    expected = network.framework_outputs()[0]
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    np.testing.assert_allclose(network.framework_outputs()[0], expected, atol=1e-5)


def test_a_model_that_nothing_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = small_onnx(tmp_path / "net.onnx")
    network = load_network(file)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    changed = onnx.load(str(file))
    changed.graph.node[2].domain = "com.example"
    onnx.save(changed, str(file))
    bad(network.framework_outputs, UnsupportedNetworkError, "ONNX Runtime (ModuleNotFoundError", "com.example")


def test_an_onnx_file_is_read_where_torch_is_not_installed(tmp_path: Path) -> None:
    file = small_onnx(tmp_path / "net.onnx")
    code = "import sys; sys.modules['torch'] = None; from devices.networks.frontend import load_network; "
    code += f"load_network({str(file)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_fingerprint_is_of_architecture_and_weights(tmp_path: Path) -> None:
    def net(width: int, value: float) -> str:
        layer = nn.Linear(2, width)
        nn.init.constant_(layer.weight, value)
        nn.init.zeros_(layer.bias)
        return load_network((layer, (torch.ones(1, 2),))).fingerprint

    assert net(3, 0.5) == net(3, 0.5)
    assert net(3, 0.5) != net(3, 0.25)
    assert net(3, 0.5) != net(4, 0.5)
    file = small_onnx(tmp_path / "net.onnx")
    code = f"from devices.networks.frontend import load_network; print(load_network({str(file)!r}).fingerprint)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == load_network(file).fingerprint


def bad(function: Callable[[], object], kind: type[NetworkError], *named: str) -> None:
    with pytest.raises(NetworkError) as caught:
        function()
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    for text in named:
        assert text in caught.value.problem
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("no/such.onnx", "no/such.onnx"),
        ("no/such.pt2", "no/such.pt2"),
        ("no/such.py:net", "no/such.py"),
        (str(NETWORKS), "networks.py"),
        (f"{NETWORKS}:alexnet", "'alexnet'"),
        (f"{NETWORKS}:", "networks.py"),
        (f"{ROOT / 'pyproject.toml'}", "pyproject.toml"),
    ],
)
def test_what_is_not_there_is_named(spec: str, named: str) -> None:
    bad(lambda: load_network(spec), NetworkError, named)


def test_the_functions_that_a_file_has_are_offered() -> None:
    offered = "bert_tiny, decode_step, mlp, mobilenet_v2, mobilenet_v2_narrow, resnet18, resnet34, small_cnn"
    with pytest.raises(NetworkError, match=offered):
        load_network(f"{NETWORKS}:alexnet")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("def net():\n    raise ValueError('no weights here')", "no weights here"),
        ("def net():\n    return 3", "a int"),
        ("def net():\n    return None", "None"),
        ("def net():\n    return nn.Linear(2, 2)", "a Linear"),
        ("def net():\n    return 'model', (torch.ones(1),)", "a str"),
        ("def net():\n    return nn.Linear(2, 2), (1.5,)", "example input 0 is a float"),
        ("def net():\n    return nn.Linear(2, 2), ()", "a tuple"),
        ("def net():\n    return nn.Linear(2, 2), (torch.ones(1, 3),)", "torch.export"),
        ("import no_such_module_at_all\n", "no_such_module_at_all"),
        ("def net(:\n", "SyntaxError"),
        ("import sys\nsys.exit('usage: net.py DATA')\n", "usage: net.py DATA"),
        ("def net():\n    raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_functions_that_are_wrong(tmp_path: Path, body: str, named: str) -> None:
    file = python_file(tmp_path, body)
    bad(lambda: load_network(f"{file}:net"), NetworkError, named, "net.py")


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_text_that_pretends_to_be_a_model(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"model{suffix}"
    file.write_text("this is not a model\n")
    bad(lambda: load_network(file), NetworkError, f"model{suffix}")


def test_an_unsupported_torch_operator_is_named() -> None:
    class Cholesky(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.cholesky(x @ x.mT + torch.eye(3))

    bad(lambda: load_network((Cholesky(), (torch.eye(3),))), UnsupportedNetworkError, "cholesky")


def test_an_unsupported_onnx_operator_is_named(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Det", ["x"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
    )
    file = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(file))
    bad(lambda: load_network(file), UnsupportedNetworkError, "Det")


def test_a_symbolic_dimension_of_onnx_is_named(tmp_path: Path) -> None:
    file = small_onnx(tmp_path / "net.onnx", batch="N")
    bad(lambda: load_network(file), NetworkError, "'image'", "dimension 0", "'N'")


def test_a_model_without_an_output_is_refused(tmp_path: Path) -> None:
    file = small_onnx(tmp_path / "net.onnx")
    model = onnx.load(str(file))
    del model.graph.output[:]
    onnx.save(model, str(file))
    bad(lambda: load_network(file), UnsupportedNetworkError, "net.onnx has no output")


def test_a_dynamic_dimension_of_torch_export_is_named(tmp_path: Path) -> None:
    module, inputs = networks.mlp()
    program = torch.export.export(module, inputs, dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    torch.export.save(program, tmp_path / "mlp.pt2")
    bad(lambda: load_network(tmp_path / "mlp.pt2"), NetworkError, "'x'", "dimension 0")


def test_importing_is_quiet(capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> None:
    load_network(f"{NETWORKS}:bert_tiny")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert not [str(warning.message) for warning in recwarn]


def test_a_decomposition_that_fails_is_named_not_the_operators_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Samples(torch.nn.Module):
        def forward(self, data: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.grid_sample(data, grid, align_corners=False)

    def fail(*_: object) -> None:
        raise RuntimeError("a constant is missing")

    monkeypatch.setattr("devices.networks.torch.operators.decompositions.decompose", fail)
    with pytest.raises(UnsupportedNetworkError, match="a constant is missing") as caught:
        load_network((Samples(), (torch.ones(1, 2, 3, 3), torch.zeros(1, 4, 4, 2))))
    assert "grid_sampler" not in str(caught.value)
