"""Invalid admin requests: every route, with invalid names, queries, headers and bodies.

The same seed gives the same requests.

Names come from small sets, so that a real broker sees the same tenants and topics again, with valid and invalid values
mixed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from anabranch.broker.admin.service import BrokerAdmin
from anabranch.rest.routes.table import make_router

NASTY = (
    "..",
    "..%2F..%2Fetc%2Fpasswd",
    "%00",
    "%ff%fe",
    "%",
    "%2",
    "+",
    "%20",
    "a%2Fb",
    "%E6%97%A5%E6%9C%AC",
    "x" * 1_100,
    "-1",
    "18446744073709551616",
    "null",
    "__change_events",
    "t-partition-0",
    "t-partition-999999999999",
)
SOUND = {
    "tenant": ("public", "fuzz"),
    "namespace": ("default", "fuzz"),
    "topic": ("t0", "t1", "p0"),
    "subscription": ("s0", "s1"),
    "domain": ("persistent", "non-persistent"),
    "cluster": ("standalone",),
}
WORDS = ("t0", "s0", "0", "1", "5", "true", "standalone", "earliest")
QUERIES = (
    "force",
    "mode",
    "authoritative",
    "applied",
    "backlogQuotaType",
    "messagePosition",
    "perPartition",
    "metadata",
)
SCALARS: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    3,
    -1,
    2**31,
    2**63,
    -(2**63),
    1.5,
    1e308,
    "",
    "x",
    "AVRO",
    "\x00",
    "é",
)
BODIES: tuple[Any, ...] = (
    {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100},
    {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"},
    {"adminRoles": ["a"], "allowedClusters": ["standalone"]},
    {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2},
    {"delayedDeliveryPolicies": {"tickTime": 1000, "active": True}},
    {"type": "AVRO", "schema": '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}', "properties": {}},
    {"type": "JSON", "schema": "{", "properties": {"a": 1}},
    {"ledgerId": 1, "entryId": 0, "partitionIndex": -1},
    {"key": "value"},
    ["produce", "consume"],
    ["produce", "nonsense", 3],
)
AUTHORIZATION = (
    "Bearer ",
    "Bearer " + "a." * 400,
    "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.",
    "Basic !!!!",
    "Basic " + "QUFB" * 500,
    "Negotiate x",
    "\t",
)


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.method} {self.path[:150]} {self.body[:150]!r}"


class _TableOnly:
    """Placeholder for the admin services while the route table is read; no handler is called."""

    def __getattr__(self, name: str) -> _TableOnly:
        return self


def route_table() -> list[tuple[str, str]]:
    """(method, pattern) of all routes of the HTTP port, but those whose answers have no end."""
    routes = make_router(cast(BrokerAdmin, _TableOnly()), "0").routes
    return [(route.method, route.pattern) for route in routes if not route.pattern.endswith("/events")]


def mutated_calls(seed: int, count: int) -> Iterator[Call]:
    """`count` requests, with all routes about equally often."""
    chance = random.Random(seed)
    table = route_table()
    for number in range(count):
        method, pattern = table[number % len(table)] if chance.random() < 0.9 else chance.choice(table)
        if chance.random() < 0.05:
            method = chance.choice(("GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS"))
        yield Call(method, _path(chance, pattern) + _query(chance), _headers(chance), _body(chance, method))


def raw_garbage(seed: int, count: int) -> Iterator[bytes]:
    """Bytes that are not, or hardly, HTTP."""
    chance = random.Random(seed)
    good = b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for _ in range(count):
        match chance.randrange(6):
            case 0:
                yield chance.randbytes(chance.randrange(1, 300)) + b"\r\n\r\n"
            case 1:
                at = chance.randrange(len(good))
                yield good[:at] + chance.randbytes(3) + good[at:]
            case 2:
                yield b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"
            case 3:
                yield b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n"
            case 4:
                yield b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"a" * 40_000 + b"\r\n\r\n"
            case _:
                yield b"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"


def _path(chance: random.Random, pattern: str) -> str:
    parts = []
    for part in pattern.split("/"):
        if not part.startswith("{"):
            parts.append(part)
            continue
        name, _, choice = part[1:-1].partition(":")
        if chance.random() < 0.15:
            parts.append(chance.choice(NASTY))
        elif choice:
            parts.append(chance.choice(choice.split("|")))
        else:
            parts.append(chance.choice(SOUND.get(name, WORDS)))
    return "/".join(parts)


def _query(chance: random.Random) -> str:
    if chance.random() < 0.7:
        return ""
    pairs = (
        f"{chance.choice(QUERIES)}={chance.choice((*NASTY, 'true', 'false', '0', ''))}"
        for _ in range(chance.randint(1, 3))
    )
    return "?" + "&".join(pairs)


def _headers(chance: random.Random) -> dict[str, str]:
    headers = {
        "Content-Type": chance.choice(("application/json", "application/json", "text/plain", "multipart/form-data"))
    }
    if chance.random() < 0.1:
        headers["Authorization"] = chance.choice(AUTHORIZATION).strip() or "x"
    return headers


def _body(chance: random.Random, method: str) -> bytes:
    if method in ("GET", "HEAD", "OPTIONS") or chance.random() < 0.1:
        return b""
    match chance.randrange(6):
        case 0:
            return json.dumps(chance.choice(SCALARS)).encode()
        case 1 | 2:
            return json.dumps(chance.choice(BODIES)).encode()
        case 3:
            return json.dumps(_twisted(chance, chance.choice(BODIES))).encode()
        case 4:
            text = bytearray(json.dumps(chance.choice(BODIES)).encode())
            text[chance.randrange(len(text))] = chance.randrange(256)
            return bytes(text)
        case _:
            return chance.choice(
                (b"[" * 3_000, b"{" * 3_000, b"NaN", b"\xff\xfe", b"1" * 5_000, b'{"a":' * 500 + b"1" + b"}" * 500)
            )


def _twisted(chance: random.Random, value: Any) -> Any:
    """The same shape with one value of another type."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(sorted(value))
        return {**value, key: _twisted(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.5:
        return [*value, chance.choice(SCALARS)]
    return chance.choice(SCALARS)
