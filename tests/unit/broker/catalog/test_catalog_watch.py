"""Changes of other brokers: only loaded namespaces are checked, each once, and all of them after a gap."""

from __future__ import annotations

import asyncio

from anabranch.broker.catalog.catalog_watch import CatalogWatch, Unread
from anabranch.broker.catalog.topic_policy_records import topic_policies_key
from anabranch.broker.errors import NamespaceNotFound
from anabranch.metadata.interface import ANY, Change, ChangeKind, StoreUnavailable
from anabranch.metadata.memory.data import MemoryData
from anabranch.metadata.memory.store import MemoryStore
from anabranch.model.names import TopicName
from anabranch.runtime.clock import SystemClock

A, B = TopicName.parse("persistent://t/a/x"), TopicName.parse("persistent://u/b/x")


def changed(key: str) -> Change:
    return Change(ChangeKind.MODIFIED, key)


def test_policies_are_applied_to_loaded_namespaces_and_permissions_to_all() -> None:
    unread = Unread()
    for key in ("/namespaces/t/a", "/namespaces/t/a", "/namespaces/t/other", "/namespaces/t", "/tenants/u"):
        unread.note(changed(key))
    taken = unread.take()
    assert taken.loaded_namespaces([A, B]) == ["t/a"]
    assert (list(taken.namespaces), list(taken.tenants)) == (["t/a", "t/other"], ["u"])
    assert taken and not unread and not unread.take()


def test_changed_topic_policies_check_loaded_parts_of_the_topic_once() -> None:
    unread, parts = Unread(), [A.partition(0), A.partition(1), B]
    for name in (A, TopicName.parse("persistent://t/a/other"), TopicName.parse("persistent://not/loaded/x")):
        unread.note(changed(topic_policies_key(name)))
    taken = unread.take()
    assert (taken.loaded_namespaces(parts), list(taken.tenants)) == ([], [])
    assert [one.base for one in taken.loaded_topics(parts)] == [A]
    assert taken and not unread


def test_topic_is_not_checked_again_after_its_namespace() -> None:
    unread = Unread()
    unread.note(changed(topic_policies_key(A)))
    unread.note(changed("/namespaces/t/a"))
    taken = unread.take()
    assert (taken.loaded_namespaces([A, B]), taken.loaded_topics([A, B])) == (["t/a"], [])


def test_gap_in_hints_checks_everything_loaded() -> None:
    unread = Unread()
    unread.note(Change(ChangeKind.INVALIDATED, "/namespaces"))
    taken = unread.take()
    assert taken.is_everything and taken.loaded_namespaces([A, B, A]) == ["t/a", "u/b"]
    assert taken.loaded_topics([A, B]) == []
    unread.add(taken)
    assert unread.is_everything


class Parts:
    """Records the calls that topics and connections get."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.failures = 0
        self.turned = asyncio.Event()

    def names(self) -> list[TopicName]:
        return [A, B]

    async def apply_policies(self, namespace: str) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        if namespace == "u/b":
            raise NamespaceNotFound("deleted")
        self._tell(f"policies {namespace}")

    async def apply_topic_policies(self, name: TopicName) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        self._tell(f"topic {name}")

    async def permissions_changed(self, tenant: str | None, namespace: str | None = None) -> None:
        self._tell(f"permissions {namespace or tenant or 'everywhere'}")

    def _tell(self, text: str) -> None:
        self.told.append(text)
        self.turned.set()

    async def wait(self, text: str) -> None:
        async with asyncio.timeout(10):
            while text not in self.told:
                self.turned.clear()
                await self.turned.wait()


async def test_changes_of_other_brokers_are_applied_with_retries() -> None:
    clock, parts = SystemClock(), Parts()
    data = MemoryData(clock)
    mine, other = MemoryStore(clock, data=data), MemoryStore(clock, data=data)
    async with mine, other, CatalogWatch(mine, parts, parts, clock):
        parts.failures = 2
        await other.put("/namespaces/u/b", b"{}", expected=ANY)
        await other.put("/namespaces/t/a", b"{}", expected=ANY)
        await parts.wait("policies t/a")
        assert set(parts.told) == {"permissions t/a", "permissions u/b", "policies t/a"}, "one of them is deleted"
        await other.put("/tenants/u", b"{}", expected=ANY)
        await parts.wait("permissions u")
        parts.failures = 2
        await other.put(topic_policies_key(A), b"{}", expected=ANY)
        await parts.wait(f"topic {A}")


async def test_changes_during_a_gap_are_applied_afterwards() -> None:
    clock, parts = SystemClock(), Parts()
    data = MemoryData(clock)
    mine, other = MemoryStore(clock, data=data), MemoryStore(clock, data=data)
    async with mine, other, CatalogWatch(mine, parts, parts, clock):
        mine.cut()
        await other.put("/namespaces/t/a", b"{}", expected=ANY)
        assert parts.told == []
        mine.heal()
        await parts.wait("policies t/a")
        assert parts.told == ["permissions everywhere", "policies t/a"]
