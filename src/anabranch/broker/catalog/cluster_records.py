"""Records of clusters: names that tenants and namespaces refer to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from anabranch.metadata.interface import ABSENT, ANY, MetadataStore, VersionMismatch
from anabranch.model.errors import AlreadyExists, BadName, NotAllowed, NotFound
from anabranch.model.names import check_tenant

CAS_TRIES = 16


class ClusterRecords:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def names(self) -> list[str]:
        return sorted(await self._store.children("/clusters"))

    async def record(self, name: str) -> dict[str, Any]:
        found = await self._store.get(f"/clusters/{check_cluster(name)}")
        if found is None:
            raise NotFound("Cluster does not exist")
        data: dict[str, Any] = json.loads(found.value)
        return data

    async def save(self, name: str, data: Mapping[str, Any], *, create: bool) -> None:
        key = f"/clusters/{check_cluster(name)}"
        found = await self._store.get(key)
        if create and found is not None:
            raise AlreadyExists("Cluster already exists")
        if not create and found is None:
            raise NotFound("Cluster does not exist")
        try:
            expected = ABSENT if found is None else found.version
            await self._store.put(key, json.dumps(dict(data)).encode(), expected=expected)
        except VersionMismatch as raced:
            raise NotAllowed(f"cluster {name!r} was changed concurrently; try again") from raced

    async def change(self, name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Changes the record; NotFound for an unknown cluster."""
        key = f"/clusters/{check_cluster(name)}"
        for _ in range(CAS_TRIES):
            found = await self._store.get(key)
            if found is None:
                raise NotFound("Cluster does not exist")
            try:
                await self._store.put(key, json.dumps(change(json.loads(found.value))).encode(), expected=found.version)
            except VersionMismatch:
                continue  # changed concurrently: on the new record
            return
        raise NotAllowed(f"cluster {name!r} was changed concurrently; try again")

    async def delete(self, name: str) -> None:
        await self._store.delete(f"/clusters/{check_cluster(name)}", expected=ANY)

    async def check(self, names: Iterable[str]) -> None:
        missing = sorted(set(names).difference(await self.names()))
        if missing:
            raise NotAllowed(f"Clusters do not exist: {', '.join(missing)}")


def check_cluster(name: str) -> str:
    try:
        return check_tenant(name)
    except BadName as error:
        raise BadName("Cluster name is not valid") from error
