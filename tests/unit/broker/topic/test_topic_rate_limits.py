"""Rates of one topic: an unchanged rate keeps its debt, a removed rate releases all waiting producers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.broker.catalog.policies import Policies
from anabranch.broker.publish.producer import Producer, Publish
from anabranch.broker.publish.publish_rate_limiter import PublishRateLimiter
from anabranch.broker.settings import BrokerSettings
from anabranch.broker.token_bucket import Rate
from anabranch.broker.topic.topic_rate_limits import TopicRates
from anabranch.model.errors import NotAllowed
from anabranch.model.subscription_type import SubscriptionType
from anabranch.protocol.entry import build_entry
from tests.support.in_memory.broker import BrokerWorld
from tests.support.in_memory.broker_fakes import RecordingPeer, make_consumer
from tests.support.in_memory.topic_log import ManualClock

FREE = Policies.of({}, BrokerSettings())


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.gate: PublishRateLimiter | None = None
        self.released: list[tuple[Producer, PublishRateLimiter | None]] = []
        self.rates = TopicRates(self.clock, lambda one: self.released.append((one, self.gate)), self._gated)

    def _gated(self, gate: PublishRateLimiter | None) -> None:
        self.gate = gate


def a_publish() -> Publish:
    return Publish(BrokerWorld().producer("p"), 0, 0, 0, 1, build_entry(b"x"), True)


def test_without_limits_there_is_nothing() -> None:
    scene = Scene()
    scene.rates.apply(FREE)
    assert (scene.gate, scene.rates.dispatch, scene.rates.limits_publishing) == (None, None, False)
    assert (scene.rates.publish_times, scene.rates.dispatch_times) == (0, 0)


def test_unchanged_rate_keeps_its_bucket() -> None:
    scene = Scene()
    limited = replace(FREE, publish_rate=Rate(1), dispatch_rate=Rate(2))
    scene.rates.apply(limited)
    gate, throttle = scene.gate, scene.rates.dispatch
    scene.rates.apply(replace(limited, ttl_seconds=5))
    assert scene.gate is gate and scene.rates.dispatch is throttle and gate is not None
    scene.rates.apply(replace(limited, dispatch_rate=Rate(3)))
    assert scene.gate is gate and scene.rates.dispatch is not throttle


def test_waiting_producers_continue_when_the_rate_is_removed() -> None:
    """And finds the new gate (none), not the one it waited at."""
    scene = Scene()
    scene.rates.apply(replace(FREE, publish_rate=Rate(1)))
    assert scene.gate is not None
    first, second = a_publish(), a_publish()
    assert scene.gate.admits(first) and not scene.gate.admits(second)
    assert scene.rates.publish_times == 1
    scene.rates.apply(FREE)
    assert scene.released == [(second.producer, None)]


def test_stopped_limits_release_no_producer() -> None:
    scene = Scene()
    scene.rates.apply(replace(FREE, publish_rate=Rate(1)))
    assert scene.gate is not None
    scene.gate.admits(a_publish())
    assert not scene.gate.admits(a_publish())
    scene.rates.stop()
    scene.clock.advance(60)
    assert scene.released == []


def test_subscribe_above_the_rate_is_refused() -> None:
    scene, spec = Scene(), make_consumer(SubscriptionType.SHARED).spec
    scene.rates.apply(replace(FREE, subscribe_rate=Rate(1)))
    scene.rates.check_subscribe(RecordingPeer("host:1"), spec)
    with pytest.raises(NotAllowed):
        scene.rates.check_subscribe(RecordingPeer("host:2"), spec)
    scene.rates.check_subscribe(RecordingPeer("other:1"), spec)
