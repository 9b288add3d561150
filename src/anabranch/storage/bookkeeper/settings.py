"""The storage URL `bookkeeper://HOST:PORT[,HOST:PORT]/ROOT?OPTION=VALUE&…` as a value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from anabranch.model.errors import BadRequest
from anabranch.storage.bookkeeper.errors import BadMetadata
from anabranch.storage.bookkeeper.ledger_metadata import Quorums
from anabranch.zookeeper.address import Server, parse_servers
from anabranch.zookeeper.errors import BadAddress

SCHEME = "bookkeeper"
FORM = "bookkeeper://HOST:PORT[,HOST:PORT]/ROOT?ensemble=3&write-quorum=3&ack-quorum=2"
REQUEST_S = 5.0


class BadStorageUrl(BadRequest):
    """A storage URL that cannot be used."""

    code = "bad-storage-url"


@dataclass(frozen=True, slots=True)
class BookKeeperUrl:
    servers: tuple[Server, ...]  # of BookKeeper's ZooKeeper
    root: str
    quorums: Quorums = field(default_factory=Quorums)
    ensemble_min: int = 3  # a new ledger has at least so many copies, when fewer bookies than wanted are there
    request_s: float = REQUEST_S  # a bookie that does not answer an add or a read in this time has failed
    password: bytes = field(default=b"", repr=False)
    racks: Mapping[str, str] = field(default_factory=dict)  # bookie id -> rack


def parse_storage_url(url: str) -> BookKeeperUrl:
    """Raises BadStorageUrl."""
    scheme, mark, rest = url.partition("://")
    address, _, query = rest.partition("?")
    hosts, slash, root = address.partition("/")
    if scheme != SCHEME or not mark or not hosts or not root.strip("/"):
        raise BadStorageUrl(f"{url!r} is not a storage URL; write {FORM}")
    try:
        servers = tuple(parse_servers(hosts))
    except BadAddress as error:
        raise BadStorageUrl(f"{error.written!r} is not a ZooKeeper server; write {FORM}") from error
    options = dict(parse_qsl(query, keep_blank_values=True))
    ensemble = _number(options, "ensemble", 3)
    write = _number(options, "write-quorum", ensemble)
    ack = _number(options, "ack-quorum", write // 2 + 1)
    ensemble_min = _number(options, "ensemble-min", ensemble)
    timeout_ms = _number(options, "timeout-ms", int(REQUEST_S * 1000))
    racks = _racks(options.pop("racks", ""))
    if options:
        raise BadStorageUrl(f"unknown options of a storage URL: {', '.join(sorted(options))}; write {FORM}")
    if write != ensemble:
        raise BadStorageUrl(
            f"ensemble={ensemble} and write-quorum={write} must be equal: each replica has every entry of a ledger"
        )
    try:
        quorums = Quorums(ensemble, write, ack)
    except BadMetadata as error:
        raise BadStorageUrl(error.reason) from error
    if not ack <= ensemble_min <= ensemble:
        raise BadStorageUrl(f"ensemble-min={ensemble_min} must be between ack-quorum={ack} and ensemble={ensemble}")
    return BookKeeperUrl(servers, f"{slash}{root.strip('/')}", quorums, ensemble_min, timeout_ms / 1000, racks=racks)


def _number(options: dict[str, str], name: str, default: int) -> int:
    written = options.pop(name, str(default))
    if not (written.isascii() and written.isdigit()) or int(written) < 1:
        raise BadStorageUrl(f"{name}={written} in a storage URL is not a positive number")
    return int(written)


def _racks(written: str) -> dict[str, str]:
    """`ID@RACK,ID@RACK`."""
    pairs = [one.partition("@") for one in written.split(",") if one]
    if any(not bookie or not rack for bookie, _, rack in pairs):
        raise BadStorageUrl(f"racks={written} in a storage URL is not a list of ID@RACK")
    return {bookie: rack for bookie, _, rack in pairs}
