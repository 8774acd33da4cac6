"""A ``.pt2`` file runs nothing that is in it, unless it is trusted: files that would, each in another way."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from devices.networks.frontend import load_network
from fleet_tune.base.errors import NetworkError

Program = dict[str, Any]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        self.register_buffer("scale", torch.ones(4))
        self.constant = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.nn.functional.gelu(self.linear(x), approximate="tanh") * self.scale + self.constant
        return y, torch.einsum("ij,ij->i", y, other)


class Runs:
    """Its pickle makes a file when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "net.pt2"
    torch.export.save(torch.export.export(Net().eval(), (torch.ones(2, 3), torch.ones(2, 4))), str(file))
    return file


def changed(saved: Path, file: Path, parts: dict[str, bytes | Callable[[Any], Any]]) -> Path:
    """A copy of the file with other parts: given ones, or what a function makes of the JSON in them."""
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            part = parts.get(name.partition("/")[2])
            if callable(part):
                value = json.loads(content)
                part(value)
                content = json.dumps(value).encode()
            elif part is not None:
                content = part
            new.writestr(name, content)
        there = {name.partition("/")[2] for name in old.namelist()}
        folder = old.namelist()[0].partition("/")[0]
        for name, part in parts.items():
            if name not in there and isinstance(part, bytes):
                new.writestr(f"{folder}/{name}", part)
    return file


def test_a_file_as_torch_writes_it_is_read(saved: Path) -> None:
    network = load_network(saved)
    assert [array.shape for array in network.example_inputs] == [(2, 3), (2, 4)]
    assert load_network(saved, trusted=True).name == network.name


class Hides(torch.nn.Module):
    """As attention hides what is masked."""

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(scores > 0.5, float("-inf")).softmax(-1)


def test_infinities_are_read(tmp_path: Path) -> None:
    file = tmp_path / "hides.pt2"
    torch.export.save(torch.export.export(Hides(), (torch.tensor([[0.1, 0.9, 0.2]]),)), str(file))
    (weights,) = load_network(file).framework_outputs()
    assert weights[0, 1] == 0.0
    assert weights[0, [0, 2]].sum() == pytest.approx(1.0)


def test_modules_with_hyphens_in_their_names_are_read(tmp_path: Path) -> None:
    net = torch.nn.Sequential()
    net.add_module("block1-0", torch.nn.Sequential())
    net[0].add_module("norm-1", torch.nn.BatchNorm1d(3))
    net[0].add_module("activation-1", torch.nn.ReLU())
    file = tmp_path / "hyphens.pt2"
    torch.export.save(torch.export.export(net.eval(), (torch.tensor([[0.5, -1.0, 2.0]]),)), str(file))
    (output,) = load_network(file).framework_outputs()
    assert output[0] == pytest.approx([0.5, 0.0, 2.0], rel=1e-4)


def code(mark: Path) -> str:
    return f"__import__('pathlib').Path({str(mark)!r}).touch()"


def node(index: int, **others: Any) -> Callable[[Program], None]:
    return lambda program: program["graph_module"]["graph"]["nodes"][index].update(others)


def first_size(expression: str) -> Callable[[Program], None]:
    def change(program: Program) -> None:
        values = program["graph_module"]["graph"]["tensor_values"]
        values["x"]["sizes"][0] = {"as_expr": {"expr_str": expression, "hint": None}}

    return change


def hidden_tensor(name: str, expression: str) -> Callable[[Program], None]:
    """A tensor that has the name of a part that is not looked at."""

    def change(program: Program) -> None:
        values = program["graph_module"]["graph"]["tensor_values"]
        values[name] = {**values["x"], "sizes": [{"as_expr": {"expr_str": expression, "hint": None}}]}

    return change


def named(name: str) -> Callable[[Program], None]:
    """The first input under another name, which torch writes into the source of a function."""
    return lambda program: program.update(
        json.loads(json.dumps(program).replace('"name": "x"', f'"name": {json.dumps(name)}'))
    )


def weight_named(name: str) -> Callable[[Program], None]:
    def change(program: Program) -> None:
        inputs = program["graph_module"]["signature"]["input_specs"]
        next(spec["parameter"] for spec in inputs if "parameter" in spec)["parameter_name"] = name

    return change


PROGRAMS: dict[str, Callable[[str, str], Callable[[Program], None]]] = {
    "a dimension that is evaluated": lambda source, _mark: first_size(source),
    "a power of which nobody sees the end": lambda _source, _mark: first_size("Pow(Integer(9), Integer(999999999))"),
    "a range that is evaluated": lambda source, _mark: (
        lambda program: program["range_constraints"].update({source: {"min_val": 0, "max_val": 1}})
    ),
    "a dimension of a tensor called metadata": lambda source, _mark: hidden_tensor("metadata", source),
    "a dimension of a tensor called guards_code": lambda source, _mark: hidden_tensor("guards_code", source),
    "a function of torch that reads pickles": lambda _source, _mark: node(0, target="torch.load"),
    "a function of torch that runs code": lambda _source, _mark: node(0, target="torch.hub.load"),
    "a library": lambda _source, _mark: node(0, target="torch.ops.load_library"),
    "a module": lambda _source, _mark: node(0, target="torch.ops.import_module"),
    "a function that calls others": lambda _source, _mark: node(0, target="_operator.call"),
    "a file of numbers": lambda _source, _mark: node(0, target="torch.ops.aten.from_file.default"),
    "an operator of others": lambda _source, _mark: node(0, target="torch.ops.mine.run.default"),
    "a number that is code": lambda source, _mark: node(
        0, inputs=[{"name": "input", "arg": {"as_float": source}, "kind": 1}]
    ),
    "a name that is code": lambda source, _mark: named(f"x={source}"),
    "a name of a weight that ends its quotes": lambda source, _mark: weight_named(f'linear") or {source} or ("'),
    "a nesting of other types": lambda _source, _mark: (
        lambda program: program["graph_module"]["module_call_graph"][0]["signature"].update(
            out_spec='[1, {"type": "builtins.eval", "context": "null", "children_spec": []}]'
        )
    ),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_programs_that_run_code_are_refused(saved: Path, tmp_path: Path, what: str) -> None:
    mark = tmp_path / "mark"
    file = changed(saved, tmp_path / "net.pt2", {"models/model.json": PROGRAMS[what](code(mark), str(mark))})
    with pytest.raises(NetworkError, match=r"was not read, because reading it may run code.*--trust-model"):
        load_network(file)
    assert not mark.exists()


def use_pickle(config: Any) -> None:
    next(iter(config["config"].values()))["use_pickle"] = True


def other_object(config: Any) -> None:
    next(iter(config["config"].values()))["path_name"] = "opaque_obj_0"


@pytest.mark.parametrize(
    "make",
    [
        lambda evil: {"data/weights/model_weights_config.json": use_pickle, "data/weights/weight_0": evil},
        lambda evil: {"data/constants/model_constants_config.json": other_object, "data/constants/opaque_obj_0": evil},
        lambda evil: {"data/weights/model.pt": evil},
        lambda evil: {"data/constants/model.pt": evil},
        lambda evil: {"data/sample_inputs/model.pt": evil},
        lambda evil: {"data/aotinductor/model/model.so": evil},
    ],
    ids=["weight", "object", "old-weights", "old-constants", "examples", "library"],
)
def test_pickles_and_libraries_are_refused(
    saved: Path, tmp_path: Path, make: Callable[[bytes], dict[str, bytes | Callable[[Any], Any]]]
) -> None:
    mark = tmp_path / "mark"
    torch.save(Runs(mark), tmp_path / "evil")
    for evil in ((tmp_path / "evil").read_bytes(), pickle.dumps(Runs(mark))):
        file = changed(saved, tmp_path / "net.pt2", make(evil))
        with pytest.raises(NetworkError, match=r"was not read, because reading it may run code.*--trust-model"):
            load_network(file)
        assert not mark.exists()


def test_what_would_run_does_so_where_the_file_is_trusted(saved: Path, tmp_path: Path) -> None:
    """So the files of these tests are what they say."""
    mark = tmp_path / "mark"
    torch.save((Runs(mark),), tmp_path / "evil")
    evil = (tmp_path / "evil").read_bytes()
    file = changed(saved, tmp_path / "net.pt2", {"data/sample_inputs/model.pt": evil})
    with pytest.raises(NetworkError):  # the examples are no inputs
        load_network(file, trusted=True)
    assert mark.exists()
    mark.unlink()
    file = changed(saved, tmp_path / "net.pt2", {"models/model.json": first_size(code(mark))})
    with pytest.raises(NetworkError):
        load_network(file, trusted=True)
    assert mark.exists()


def test_guards_are_not_run(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def guards(program: Program) -> None:
        program["guards_code"] = [code(mark)]

    load_network(changed(saved, tmp_path / "net.pt2", {"models/model.json": guards}))
    assert not mark.exists()


def test_a_file_of_an_older_form_is_not_read_by_itself(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "old.pt2", "w") as file:
        file.writestr("version", "8.8")
        file.writestr("serialized_exported_program.json", "{}")
    with pytest.raises(NetworkError):
        load_network(tmp_path / "old.pt2")
    (tmp_path / "no.pt2").write_bytes(b"PK\x03\x04 and nothing else")
    with pytest.raises(NetworkError):
        load_network(tmp_path / "no.pt2")


def test_operators_of_a_package_that_is_not_there_are_named(tmp_path: Path) -> None:
    class Suppresses(torch.nn.Module):
        def forward(self, boxes: torch.Tensor) -> torch.Tensor:
            return torch.ops.torchvision.of_this_test(boxes)

    file = tmp_path / "net.pt2"
    with torch.library._scoped_library("torchvision", "FRAGMENT") as library:
        library.define("of_this_test(Tensor boxes) -> Tensor")
        library.impl("of_this_test", lambda boxes: boxes * 2, "CPU")
        library.impl("of_this_test", lambda boxes: boxes * 2, "Meta")
        torch.export.save(torch.export.export(Suppresses(), (torch.ones(2, 4),)), str(file))
    with pytest.raises(NetworkError, match=r"torchvision\.of_this_test") as caught:
        load_network(file)
    assert "install the torchvision that belongs to this torch" in str(caught.value)
