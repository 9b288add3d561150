"""The checked-in generated code is what the .proto files say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_protocol", ROOT / "scripts" / "generate_protocol.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
def test_generated_code_is_in_step(tmp_path: Path) -> None:
    written = generator().generate(tmp_path)
    assert [path.name for path in written] == ["pulsar_pb2.py", "pulsar_pb2.pyi"]
    for path in written:
        checked_in = ROOT / "src" / "anabranch" / "protocol" / path.name
        assert path.read_text() == checked_in.read_text(), f"{path.name} is stale: run scripts/generate_protocol.py"


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
@pytest.mark.parametrize("proto", generator().PROTOS, ids=lambda proto: proto.stem)
def test_every_proto_is_in_step(proto: Path, tmp_path: Path) -> None:
    written = generator().generate(tmp_path, proto)
    assert len(written) == 2
    for path in written:
        checked_in = ROOT / "src" / proto.parent / path.name
        assert path.read_text() == checked_in.read_text(), f"{path.name} is stale: run scripts/generate_protocol.py"


def test_no_proto_is_forgotten() -> None:
    assert sorted(generator().PROTOS) == sorted(p.relative_to(ROOT / "src") for p in (ROOT / "src").rglob("*.proto"))
