"""Any text as the manifest of a compiled network: an error of ours. (Its library is whole, and never loaded.)"""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import tvm
from hypothesis import given
from hypothesis import strategies as st

from devices.networks.compiled import network_folder
from devices.networks.compiled.tensor_file import file_digest
from fleet_tune.base.errors import UserError
from tests.helpers.fuzz import changed, damaged, json_values
from tests.helpers.kernels import native_target
from tests.helpers.properties import examples

WHOLE: dict[str, Any] = {
    "schema": network_folder.SCHEMA,
    "device_class": "cpu",
    "target": json.loads(native_target()),
    "versions": {"tvm": tvm.__version__},
    "inputs": [{"name": "x", "shape": [1, 2], "dtype": "float32"}],
    "static_caches": [{"input": 0, "output": 0}],
    "made_of": "0",
    "parameters": ["a"],
    "files": {},
    "threads": 1,
    "tasks": [],
}
DYNAMIC: dict[str, Any] = {
    **WHOLE,
    "inputs": [{"name": "x", "shape": ["n", 2], "dtype": "float32"}],
    "shapes": "n=1..8; n=2:1",
}


@given(
    st.one_of(
        changed(DYNAMIC, json_values()).map(lambda value: json.dumps(value).encode()),
        changed(WHOLE, json_values()).map(lambda value: json.dumps(value).encode()),
        damaged(json.dumps(WHOLE).encode()),
        st.just(b"[" * 100_000),
    ),
    st.booleans(),
)
@examples(100)
def test_any_manifest(text: bytes, whole: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "network.so").write_bytes(b"no library")
        (folder / "params.safetensors").write_bytes(b"")
        if whole:
            with contextlib.suppress(ValueError, RecursionError):
                manifest = json.loads(text)
                if isinstance(manifest, dict) and isinstance(manifest.get("files"), dict):
                    files = {each: file_digest(folder / each) for each in ("network.so", "params.safetensors")}
                    text = json.dumps({**manifest, "files": files}).encode()
        (folder / "manifest.json").write_bytes(text)
        try:
            network_folder.load(folder)
        except UserError:
            return
        raise AssertionError("what is no library was loaded")
