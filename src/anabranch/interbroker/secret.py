"""The cluster's secret, in the metadata store. The first broker creates it; every broker reads it."""

from __future__ import annotations

from anabranch.interbroker.signature import SECRET_BYTES, Secret
from anabranch.metadata.interface import ABSENT, MetadataStore, VersionMismatch
from anabranch.model.errors import Error

SECRET_KEY = "/cluster/secret"


class BadSecret(Error):
    """The record under /cluster/secret is damaged. Delete it while no broker runs; the next start creates a new one."""

    code = "bad-cluster-secret"


async def load_secret(store: MetadataStore, fresh: bytes) -> Secret:
    """The stored secret; stores `fresh` if there is none."""
    assert len(fresh) == SECRET_BYTES
    found = await store.get(SECRET_KEY)
    if found is None:
        try:
            await store.put(SECRET_KEY, fresh.hex().encode(), expected=ABSENT)
            return Secret(fresh)
        except VersionMismatch:  # another broker was first
            await store.sync()
            found = await store.get(SECRET_KEY)
    try:
        key = bytes.fromhex((b"" if found is None else found.value).decode())
    except ValueError:
        key = b""
    if len(key) < SECRET_BYTES:
        raise BadSecret(f"{SECRET_KEY} does not hold {SECRET_BYTES} bytes in hex")
    return Secret(key)
