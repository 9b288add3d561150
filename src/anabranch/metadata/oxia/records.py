"""Oxia's records to values of the port and back: logical versions, envelopes, the store's address. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.metadata.envelope import Numbering, unwrap, wrap_raw, wrap_timed
from anabranch.metadata.interface import (
    ABSENT,
    ANY,
    RESERVED,
    Expected,
    UnknownStore,
    Versioned,
    check_tree,
    decide_put,
)
from anabranch.metadata.oxia import oxia_pb2 as wire

EPOCH = f"{RESERVED}/epoch"
PORT = 6648
BARRIER = f"{RESERVED}/barrier"  # never written: its deletion changes nothing, but needs a quorum


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of `oxia://h:p,h:p/namespace/prefix`. The prefix begins with a slash or is empty."""

    seeds: tuple[str, ...]
    namespace: str
    prefix: str

    @classmethod
    def parse(cls, rest: str) -> Address:
        """`rest` is the URL after the scheme and its colon."""
        hosts, _, path = rest.removeprefix("//").partition("/")
        namespace, _, prefix = path.rstrip("/").partition("/")
        seeds = tuple(_with_port(host) for host in hosts.split(","))
        if not rest.startswith("//") or not all(_is_address(seed) for seed in seeds):
            raise UnknownStore(
                f"an Oxia metadata URL is written oxia://HOST[:PORT][,HOST[:PORT]]/NAMESPACE[/PREFIX], not oxia:{rest}"
            )
        return cls(seeds, namespace or "default", check_tree("/" + prefix))


def _with_port(host: str) -> str:
    return host if ":" in host.rpartition("]")[2] or not host else f"{host}:{PORT}"


def _is_address(seed: str) -> bool:
    host, _, port = seed.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 65536


def versioned(record: wire.Record, numbering: Numbering) -> Versioned:
    native = record.version
    envelope = unwrap(record.value)
    value, version = record.value, None
    created_ms, modified_ms = native.created_ms, native.modified_ms
    if envelope is not None:
        value, version = envelope.value, envelope.version
        created_ms = envelope.created_ms or created_ms
        modified_ms = modified_ms if version is None else envelope.modified_ms
    if version is None:
        version = numbering.logical(native.version_id)
    return Versioned(value, version, created_ms, modified_ms, ephemeral=native.HasField("session_id"))


def wrap(value: bytes, created_ms: int) -> bytes:
    """The stored bytes. A record that was moved in keeps its creation time in the envelope."""
    return wrap_timed(value, created_ms, 0) if created_ms else wrap_raw(value)


def carried_ms(record: wire.Record) -> int:
    """The creation time that a write over this record must keep in the envelope; 0 if the server has it."""
    envelope = unwrap(record.value)
    return 0 if envelope is None else envelope.created_ms


@dataclass(frozen=True, slots=True)
class Plan:
    """How one write is sent to the server."""

    native: int | None  # version to compare with; None: no compare, -1: the key must be absent
    created_ms: int = 0  # to keep in the envelope
    may_repeat: bool = False  # a mismatch only means that another write came between the read and this write


def plan_blind(expected: Expected, numbering: Numbering) -> Plan | None:
    """Without reading the record; None if it must be read for its native version or creation time."""
    if expected is ABSENT:
        return Plan(-1)
    if numbering.offset:
        return None  # records were moved in
    if expected is ANY:
        return Plan(None)
    assert isinstance(expected, int)
    return Plan(expected) if expected >= 0 else None


def plan_over(key: str, expected: Expected, record: wire.Record | None, numbering: Numbering) -> Plan:
    """Raises VersionMismatch."""
    decide_put(key, expected, None if record is None else versioned(record, numbering).version)
    if record is None:
        return Plan(None)
    created_ms = carried_ms(record)
    if expected is ANY and not created_ms:
        return Plan(None)
    return Plan(record.version.version_id, created_ms, may_repeat=expected is ANY)
