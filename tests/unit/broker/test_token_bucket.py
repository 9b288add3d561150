"""Token buckets, publish rate limiter and dispatch rate limiter; the clock is manual."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.publish.producer import Producer, Publish
from anabranch.broker.publish.publish_rate_limiter import PublishRateLimiter
from anabranch.broker.subscription.dispatch_rate_limiter import DispatchRateLimiter
from anabranch.broker.token_bucket import NO_LIMIT, SUBSCRIBERS_MAX, Allowance, Rate, RateLimiter, SubscribeRates
from tests.support.in_memory.publisher import make_producer, send
from tests.support.in_memory.topic_log import ManualClock


def test_full_bucket_grants_one_period_at_once() -> None:
    throttle = RateLimiter(Rate(10, 0, 2.0), 100.0)
    for _ in range(10):
        assert throttle.wait_seconds(100.0) == 0
        throttle.take(1, 1_000_000)
    assert 0 < throttle.wait_seconds(100.0) <= 0.2
    assert throttle.wait_seconds(100.2) == 0


def test_debt_is_paid_off_by_waiting() -> None:
    throttle = RateLimiter(Rate(0, 100), 0.0)
    throttle.take(1, 1_000)
    assert throttle.wait_seconds(0.0) > 9
    assert throttle.wait_seconds(5.0) > 4
    assert throttle.wait_seconds(9.02) == 0


def test_both_dimensions_count() -> None:
    throttle = RateLimiter(Rate(5, 100), 0.0)
    throttle.take(1, 150)
    assert throttle.wait_seconds(0.0) > 0
    assert throttle.allowance() == Allowance(4, 1)


@given(
    st.integers(1, 1_000),
    st.floats(0.5, 60),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50)), min_size=1, max_size=60),
)
def test_never_more_than_the_rate_a_period_and_one_step(
    amount: int, period: float, steps: list[tuple[float, int]]
) -> None:
    throttle, now, granted, largest = RateLimiter(Rate(amount, 0, period), 0.0), 0.0, 0, 0
    for pause, wanted in steps:
        now += pause
        if throttle.wait_seconds(now) == 0:
            throttle.take(wanted, 0)
            granted += wanted
            largest = max(largest, wanted)
    assert granted <= amount * (now / period) + amount + largest + 1e-6


def test_time_running_backwards_adds_no_tokens() -> None:
    throttle = RateLimiter(Rate(1, 0), 10.0)
    throttle.take(1, 0)
    assert throttle.wait_seconds(5.0) > 0
    assert throttle.wait_seconds(11.0) == 0


def test_each_consumer_has_its_own_subscribe_rate() -> None:
    rates = SubscribeRates()
    assert all(rates.admits("a", 0.0) for _ in range(100))
    rates.change(Rate(2, 0, 30.0))
    assert [rates.admits("a", 0.0) for _ in range(3)] == [True, True, False]
    assert rates.admits("b", 0.0)
    assert rates.admits("a", 20.0)
    rates.change(NO_LIMIT)
    assert rates.admits("a", 20.0)


def test_subscribe_rates_remember_a_bounded_number() -> None:
    rates = SubscribeRates()
    rates.change(Rate(1, 0, 30.0))
    assert not [index for index in range(SUBSCRIBERS_MAX + 1) if not rates.admits(str(index), 0.0)]
    assert not rates.admits(str(SUBSCRIBERS_MAX), 0.0)
    assert rates.admits("0", 0.0)  # forgotten


# -- the line of producers


class Line:
    """Producers whose entries leave when the gate says so."""

    def __init__(self, rate: Rate) -> None:
        self.clock = ManualClock()
        self.gone: list[Publish] = []
        self.gate: PublishRateLimiter | None = PublishRateLimiter(rate, self.clock, self.release)

    def publish(self, producer: Producer, sequence: int) -> None:
        producer.pending.append(send(producer, sequence))
        self.release(producer)

    def release(self, producer: Producer) -> None:
        held = producer.pending
        while held and (self.gate is None or self.gate.admits(held[0])):
            self.gone.append(held.popleft())

    def names(self) -> list[str]:
        return [one.producer.name for one in self.gone]


def test_producers_wait_in_line_and_in_order() -> None:
    line = Line(Rate(2, 0))
    first, second = make_producer(name="first"), make_producer(name="second")
    for sequence in range(4):
        line.publish(first, sequence)
    for sequence in range(3):
        line.publish(second, sequence)
    assert line.names() == ["first", "first"]
    assert line.gate is not None and line.gate.times == 2
    for _ in range(40):
        line.clock.advance(0.1)
    assert [one.sequence for one in line.gone if one.producer is first] == [0, 1, 2, 3]
    assert [one.sequence for one in line.gone if one.producer is second] == [0, 1, 2]
    assert line.names()[2:4] == ["first", "second"]  # in turn, no producer starves


def test_producers_continue_without_the_limiter() -> None:
    line = Line(Rate(1, 0))
    one, closed = make_producer(name="one"), make_producer(name="closed")
    for sequence in range(3):
        line.publish(one, sequence)
        line.publish(closed, sequence)
    closed.closed = True
    gate, line.gate = line.gate, None
    assert gate is not None
    gate.close()
    assert line.names() == ["one"] * 3


def test_stopped_limiter_releases_no_producer() -> None:
    line = Line(Rate(1, 0))
    one = make_producer(name="one")
    for sequence in range(3):
        line.publish(one, sequence)
    assert line.gate is not None
    line.gate.stop()
    line.clock.advance(60.0)
    assert line.names() == ["one"]


# -- the brake


def test_dispatch_limiter_charges_deliveries_and_resumes() -> None:
    clock, resumed = ManualClock(), []
    own, shared = RateLimiter(Rate(10, 0), clock.monotonic()), RateLimiter(Rate(0, 500), clock.monotonic())
    brake = DispatchRateLimiter((own, shared), clock, lambda: resumed.append(clock.monotonic()))
    brake.charge(1_000, 1_000_000)  # of before the rate was set
    assert brake.allowance() == Allowance(10, 500)
    brake.charge(1_004, 1_000_100)
    assert brake.allowance() == Allowance(6, 400)
    brake.charge(1_015, 1_000_200)
    assert brake.allowance() is None
    assert brake.allowance() is None
    assert own.times == 1 and shared.times == 0
    clock.advance(1.0)
    assert len(resumed) == 1
    assert brake.allowance() is not None


def test_a_closed_brake_does_not_resume() -> None:
    clock, resumed = ManualClock(), []
    brake = DispatchRateLimiter((RateLimiter(Rate(1, 0), clock.monotonic()),), clock, lambda: resumed.append(1))
    brake.charge(0, 0)
    brake.charge(5, 5)
    assert brake.allowance() is None
    brake.close()
    clock.advance(60.0)
    assert not resumed
