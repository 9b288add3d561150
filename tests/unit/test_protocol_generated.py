"""The checked-in generated code is what the .proto file says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
def test_generated_code_is_in_step(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("generate_protocol", ROOT / "scripts" / "generate_protocol.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = module.generate(tmp_path)
    assert [path.name for path in written] == ["pulsar_pb2.py", "pulsar_pb2.pyi"]
    for path in written:
        checked_in = ROOT / "src" / "anabranch" / "protocol" / path.name
        assert path.read_text() == checked_in.read_text(), f"{path.name} is stale: run scripts/generate_protocol.py"
