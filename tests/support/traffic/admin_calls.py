"""What the admin client can ask for: every method of every group, called once, and the requests that come of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anabranch.admin
from anabranch.admin.client import Answer
from anabranch.admin.errors import StrangeAnswer
from anabranch.admin.paths import POLICIES, TOPIC_POLICIES

SAMPLES: dict[str, Any] = {
    "tenant": "acme",
    "cluster": "standalone",
    "namespace": "acme/shop",
    "topic": "acme/shop/a b",
    "subscription": "s/1",
    "addresses": {},
    "segment": 3,
    "segments": [1, 2],
    "descriptor": "0000-7fff-1",
    "messages": [{"payload": "x"}],
    "message_id": {"ledgerId": 1, "entryId": 2},
    "schema": {"type": "STRING"},
    "properties": {"a": "b"},
    "policy": {},
    "quota": {},
    "grants": [{"topic": "t", "role": "r"}],
    "roles": ["r"],
    "actions": ["produce"],
    "is_replicated": True,
    "bundle": "0x00000000_0xffffffff",
    "broker": "b:8080",
    "brokers": ["b:8080"],
    "peers": ["west"],
    "isolation": {},
}
NUMBERS = {"partitions", "timestamp_ms", "ledger", "entry", "older_than_s", "count", "number", "index"}
MORE: dict[str, list[dict[str, Any]]] = {  # calls that a method makes only with these
    "namespaces.unload": [{"bundle": "0x0_0x1"}],
    "namespaces.clear_backlog": [
        {"bundle": "0x0_0x1"},
        {"subscription": "s"},
        {"bundle": "0x0_0x1", "subscription": "s"},
    ],
    "namespaces.unsubscribe": [{"bundle": "0x0_0x1"}],
    "topics.create": [{"partitions": 3}],
    "topics.delete": [{"partitioned": True}],
    "topics.policy": [{"method": method} for method in ("PUT", "POST", "DELETE")],
    "schemas.get": [{"version": 1}],
    "brokers.list": [{"cluster": "c"}],
    "brokers.configuration": [{"which": "values"}],
    "scalable_topics.merge": [{"segments": [1, 2, 3]}],
}


class Recorder:
    """Takes requests, answers nothing."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    async def call(self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None) -> Answer:
        self.seen.append((method.lower(), path))
        return Answer(204, b"")


def groups(admin: object) -> Iterator[tuple[str, Any]]:
    return ((name, group) for name, group in vars(admin).items() if not name.startswith("_"))


def methods(group: object) -> Iterator[tuple[str, Callable[..., Any]]]:
    return ((name, one) for name, one in inspect.getmembers(group, inspect.ismethod) if not name.startswith("_"))


def arguments(method: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, one in inspect.signature(method).parameters.items():
        if one.default is inspect.Parameter.empty:
            found[name] = 7 if name in NUMBERS else SAMPLES.get(name, "word")
    return found


async def requested() -> set[tuple[str, str]]:
    """Every request that some method of some group makes."""
    recorder = Recorder()
    for name, group in groups(anabranch.admin.connect()):
        group._exchange = recorder
        for method_name, method in methods(group):
            wishes: list[dict[str, Any]] = [{}, *MORE.get(f"{name}.{method_name}", ())]
            ways = {"policy": "GET", "set_policy": "P", "remove_policy": "DELETE"}
            if name == "namespaces" and method_name in ways:
                verb = ways[method_name]
                wishes = [{"name": one} for one, can in POLICIES.items() if any(way.startswith(verb) for way in can)]
            if name == "topic_policies" and method_name in ("get", "set", "remove"):
                wishes = [{"name": one} for one in TOPIC_POLICIES]
                wishes.append({"name": "dispatchRate", "subscription": "s"})
            for wish in wishes:
                try:
                    await method(**{**arguments(method), **wish})
                except StrangeAnswer:
                    pass  # the recorder answers nothing
    return set(recorder.seen)
