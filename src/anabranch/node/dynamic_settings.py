"""Settings that change while brokers run. Their values are in the metadata store, and win over those of the start.

    /settings/NAME      the value as text; one key for each changed setting, the same for all brokers

The broker that is asked checks a value, stores it and applies it before it answers; the others follow the change hints
of the store. All read them at their start, too. A stored value that contradicts the settings of a broker's start is
ignored there with a warning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self

from anabranch.metadata.interface import ANY, KeyMissing, MetadataStore, StoreUnavailable, Watch
from anabranch.metadata.open import without_credentials
from anabranch.model.errors import NotAllowed
from anabranch.node.settings.node import NodeSettings
from anabranch.runtime.clock import Clock
from anabranch.runtime.logs import get_logger
from anabranch.runtime.retry_delays import RETRY_DELAYS
from anabranch.runtime.settings import SettingsError, changed, shown
from anabranch.runtime.tasks import TaskOwner

log = get_logger(__name__)

SETTINGS = "/settings"
APPLY_SECONDS = 60.0
ORIGIN = "changed at run time"

DYNAMIC: dict[str, str] = {
    "broker.auto_create_topics": "allowAutoTopicCreation",
    "broker.auto_create_partitions": "defaultNumPartitions",
    "broker.auto_create_subscriptions": "allowAutoSubscriptionCreation",
    "broker.deduplication": "brokerDeduplicationEnabled",
    "broker.partitions_max": "maxNumPartitionsPerPartitionedTopic",
    "broker.unacked_per_consumer_max": "maxUnackedMessagesPerConsumer",
    "broker.unacked_per_subscription_max": "maxUnackedMessagesPerSubscription",
    "broker.keep_alive_seconds": "keepAliveIntervalSeconds",
    "broker.probe_seconds": "",
    "broker.requests_in_flight_max": "",
    "broker.producers_per_connection_max": "",
    "broker.consumers_per_connection_max": "",
    "broker.sweep_seconds": "",
    "broker.idle_topic_seconds": "",
    "log.level": "",
    "schemas.compatibility_strategy": "schemaCompatibilityStrategy",
    "schemas.auto_update": "isAllowAutoUpdateSchemaEnabled",
    "schemas.validation_enforced": "isSchemaValidationEnforced",
    "scalable_topics.migration_enabled": "",
    "scalable_topics.auto_scale_enabled": "scalableTopicAutoScaleEnabled",
    "scalable_topics.max_segments": "scalableTopicMaxSegments",
    "scalable_topics.min_segments": "scalableTopicMinSegments",
    "scalable_topics.max_dag_depth": "scalableTopicMaxDagDepth",
    "scalable_topics.split_cooldown_seconds": "scalableTopicSplitCooldownSeconds",
    "scalable_topics.merge_cooldown_seconds": "scalableTopicMergeCooldownSeconds",
    "scalable_topics.merge_window_seconds": "scalableTopicMergeWindowSeconds",
    "scalable_topics.split_msg_rate_in_threshold": "scalableTopicSplitMsgRateInThreshold",
    "scalable_topics.split_bytes_rate_in_threshold": "scalableTopicSplitBytesRateInThreshold",
    "scalable_topics.split_msg_rate_out_threshold": "scalableTopicSplitMsgRateOutThreshold",
    "scalable_topics.split_bytes_rate_out_threshold": "scalableTopicSplitBytesRateOutThreshold",
    "scalable_topics.merge_msg_rate_in_threshold": "scalableTopicMergeMsgRateInThreshold",
    "scalable_topics.merge_bytes_rate_in_threshold": "scalableTopicMergeBytesRateInThreshold",
    "scalable_topics.merge_msg_rate_out_threshold": "scalableTopicMergeMsgRateOutThreshold",
    "scalable_topics.merge_bytes_rate_out_threshold": "scalableTopicMergeBytesRateOutThreshold",
    "scalable_topics.split_factor_max": "",
    "scalable_topics.merge_factor_max": "",
    "scalable_topics.split_point": "",
}
"""Setting → Pulsar's name for it, which the calls take as well; empty: none."""

_OURS = {pulsar: name for name, pulsar in DYNAMIC.items() if pulsar}
_WHY_NOT = {
    "network": "the ports are opened with it at start",
    "http": "the server is opened with it at start",
    "metadata": "the store that it describes is opened at start; metadata-migration moves to another one",
    "storage": "the volume is opened with it at start",
    "topics": "logs of topics are opened with it; retention is a policy of namespaces and topics",
    "security": "it decides who may call this; files of keys and passwords are read again when they change",
    "tls": "the ports are opened with it at start; files of certificates are read again when they change",
    "cluster": "the broker has joined the cluster with it",
}


class DynamicSettings:
    """`load` once, before the parts of the broker are made; `async with …` follows changes inside."""

    def __init__(
        self,
        store: MetadataStore,
        start: NodeSettings,
        clock: Clock,
        apply: Callable[[NodeSettings], Awaitable[None]],
    ) -> None:
        """`start`: of this process. `apply` is called with the settings that are in force from then on."""
        self._store, self._start, self._clock, self._apply = store, start, clock, apply
        self._now = start
        self._values: dict[str, str] = {}
        self._refreshing = asyncio.Lock()
        self._noted = asyncio.Event()
        self._watch: Watch | None = None
        self._tasks = TaskOwner("dynamic settings")

    async def load(self) -> NodeSettings:
        """Those of the start, with the stored changes."""
        self._watch = self._store.watch(SETTINGS)  # before the read, so that no later change is missed
        self._values = await self._stored()
        self._now = accepted(self._start, self._values)
        return self._now

    async def __aenter__(self) -> Self:
        assert self._watch is not None, "load comes first"
        self._tasks.spawn(self._follow(self._watch), "watch")
        self._tasks.spawn(self._work(), "apply")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.close()
        await self._tasks.close()

    # -- calls of administrators (`broker.admin.brokers.ChangeableSettings`)

    def in_force(self) -> Mapping[str, str]:
        return {**shown(self._now), "metadata.url": without_credentials(self._now.metadata_url)}

    def names(self) -> list[str]:
        return sorted(DYNAMIC)

    def values(self) -> dict[str, str]:
        return dict(self._values)

    async def set(self, name: str, value: str) -> None:
        own = changeable(name, shown(self._start))
        try:
            changed(self._start, {**self._values, own: value}, ORIGIN)
        except SettingsError as error:
            raise NotAllowed(f"Invalid dynamic-config value: {error.reason}") from error
        await self._store.put(f"{SETTINGS}/{own}", value.encode(), expected=ANY)
        await self._refresh()

    async def unset(self, name: str) -> None:
        own = changeable(name, shown(self._start))
        try:
            await self._store.delete(f"{SETTINGS}/{own}", expected=ANY)
        except KeyMissing:
            return  # it has the value of the start
        await self._refresh()

    # -- following

    async def _stored(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in sorted(await self._store.children(SETTINGS)):
            record = await self._store.get(f"{SETTINGS}/{name}")
            if record is not None:  # deleted since
                found[name] = record.value.decode()
        return found

    async def _refresh(self) -> None:
        async with self._refreshing:
            values = await self._stored()
            found = accepted(self._start, values)
            self._values = values
            if found != self._now:
                before, self._now = shown(self._now), found
                await self._apply(found)
                for name, value in shown(found).items():
                    if value != before[name]:
                        log.info("setting changed", extra={"setting": name, "value": value, "before": before[name]})

    async def _follow(self, watch: Watch) -> None:
        async for _ in watch:
            self._noted.set()

    async def _work(self) -> None:
        failures = 0
        while True:
            await self._noted.wait()
            self._noted.clear()
            try:
                async with asyncio.timeout(APPLY_SECONDS):
                    await self._refresh()
                failures = 0
            except (StoreUnavailable, TimeoutError) as error:
                log.warning("changed settings not applied; will be retried", extra={"reason": str(error)})
                self._noted.set()
                failures += 1
                await self._clock.sleep(RETRY_DELAYS.retry_after(failures, 0.5))


def accepted(start: NodeSettings, values: Mapping[str, str]) -> NodeSettings:
    """The settings of the start with the stored values. One that is unknown or contradicts the others is left out."""
    known = {name: value for name, value in values.items() if name in DYNAMIC}
    try:
        return changed(start, known, ORIGIN)
    except SettingsError:
        found = start
    for name, value in known.items():
        try:
            found = changed(found, {name: value}, ORIGIN)
        except SettingsError as error:
            log.warning("stored setting ignored", extra={"setting": name, "reason": error.reason})
    return found


def changeable(name: str, known: Mapping[str, str]) -> str:
    """Our name of a setting; NotAllowed says why it does not change while the broker runs."""
    own = _OURS.get(name, name)
    if own in DYNAMIC:
        return own
    if own not in known:
        raise NotAllowed(f"Can't update non-dynamic configuration: there is no setting {name}")
    why = _WHY_NOT.get(own.partition(".")[0], "it is read at start")
    raise NotAllowed(f"Can't update non-dynamic configuration: {name} needs a restart, because {why}")
