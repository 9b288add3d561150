"""The asyncio and the blocking client have the same names and parameters, and importing the package is cheap."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from anabranch.client import blocking, client
from anabranch.client.config import Backoff, Batching
from anabranch.client.connection.address import Address
from anabranch.client.consumer import checkpoint_consumer, queue_consumer, stream_consumer
from anabranch.client.consumer.cumulative_acks import KEPT_MAX, CumulativeAckLog
from anabranch.client.errors import BadOption, BadServiceUrl, Refused, refusal
from anabranch.client.messages.message import MessageId
from anabranch.client.producer import producer
from anabranch.model.errors import Error
from anabranch.protocol.server_errors import ServerError

PAIRS: list[tuple[type, type]] = [
    (client.Client, blocking.BlockingClient),
    (producer.Producer, blocking.BlockingProducer),
    (queue_consumer.QueueConsumer, blocking.BlockingQueueConsumer),
    (stream_consumer.StreamConsumer, blocking.BlockingStreamConsumer),
    (checkpoint_consumer.CheckpointConsumer, blocking.BlockingCheckpointConsumer),
]
INSIDE = {  # for the client's own parts
    "open",
    *("on_messages", "drop_messages", "on_failed", "on_unreadable", "on_end_reached", "on_rewound", "on_moved"),
    *("decryptor", "key_fetcher", "open_part", "wait_attached", "close_part"),
    *("on_start_resolved", "on_refused", "apply_assignment", "stop_handlers", "counters"),
}


def surface(kind: type) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in inspect.getmembers(kind):
        if name.startswith("_") or name in INSIDE:
            continue
        if isinstance(value, property):
            found[name] = "property"
        elif callable(value):
            parameters = inspect.signature(value).parameters.values()
            found[name] = [(one.name, one.kind, one.default, one.annotation) for one in parameters]
    return found


@pytest.mark.parametrize(("asynchronous", "face"), PAIRS, ids=lambda kind: kind.__name__)
def test_asyncio_and_blocking_classes_have_the_same_surface(asynchronous: type, face: type) -> None:
    assert surface(asynchronous) == surface(face)


@pytest.mark.parametrize("kind", [kind for pair in PAIRS for kind in pair], ids=lambda kind: kind.__name__)
def test_every_public_member_has_a_docstring(kind: type) -> None:
    """`help(client.producer)` is where developers look first."""
    names = [name for name in surface(kind) if not getattr(kind, name).__doc__]
    assert inspect.getdoc(kind) and not names


def test_blocking_methods_have_the_words_of_the_asyncio_form() -> None:
    assert blocking.BlockingProducer.send.__doc__ == producer.Producer.send.__doc__
    assert blocking.BlockingProducer.topic.__doc__ == producer.Producer.topic.__doc__
    assert "Unlike in asyncio" in str(blocking.BlockingProducer.send_nowait.__doc__), "its own words stay"


def test_both_connect_functions_have_the_same_parameters() -> None:
    ways = (client.connect, blocking.connect)
    first, second = (
        [(p.name, p.default, p.annotation) for p in inspect.signature(w).parameters.values()] for w in ways
    )
    assert first == second


def test_importing_the_package_loads_no_client() -> None:
    program = (
        "import sys, anabranch\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'google', 'asyncio', 'mmh3', 'ssl'}, loaded\n"
        "assert callable(anabranch.connect) and callable(anabranch.blocking.connect)\n"
        "assert 'anabranch.broker' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_message_id_round_trips_and_orders_within_its_lane() -> None:
    one = MessageId("persistent://public/default/日本", 1, 2, 3, 4, 5)
    assert MessageId.from_bytes(one.to_bytes()) == one
    assert one < MessageId(one.topic, 1, 2, 4, 5, 5)
    for data in (b"", b"nonsense", one.to_bytes()[:-1], b"\x09" + one.to_bytes()[1:]):
        with pytest.raises(BadOption):
            MessageId.from_bytes(data)
    with pytest.raises(TypeError):
        assert one < MessageId(one.topic, 1, 2, 4, 5, 6)


@pytest.mark.parametrize("number", [int(value) for value in ServerError.values()] + [4711])
def test_every_refusal_is_a_typed_error(number: int) -> None:
    error = refusal(number, "")
    assert isinstance(error, Refused) and isinstance(error, Error)
    assert error.server_error == number
    assert error.reason


@pytest.mark.parametrize("url", ["http://h", "h:6650", "pulsar://", "pulsar://h:99999", ""])
def test_invalid_service_urls_are_refused(url: str) -> None:
    for parse in (Address.parse, Address.parse_all):
        with pytest.raises(BadServiceUrl):
            parse(url)


def test_addresses_are_parsed() -> None:
    assert Address.parse("pulsar+ssl://h") == Address("h", 6651, True)
    assert Address.parse("pulsar://localhost:1").is_same_place(Address.parse("pulsar://127.0.0.1:1"))
    assert not Address.parse("pulsar://a:1").is_same_place(Address.parse("pulsar://b:1"))
    several = Address.parse_all("pulsar://a:1,b,[::1]:3")
    assert several == (Address("a", 1), Address("b", 6650), Address("::1", 3))
    assert str(Address.parse("pulsar://[::1]:5")) == "pulsar://[::1]:5"


def test_backoff_grows_up_to_its_maximum() -> None:
    backoff = Backoff(initial=1, maximum=10, jitter=0)
    assert [backoff.delay(attempt, 0.5) for attempt in (0, 1, 2, 3, 4, 10_000)] == [1, 2, 4, 8, 10, 10]
    jittered = Backoff(initial=1, maximum=10, jitter=0.5)
    assert (jittered.delay(0, 0.0), jittered.delay(0, 0.5)) == (0.75, 1.0)
    with pytest.raises(BadOption):
        Backoff(initial=0)
    with pytest.raises(BadOption):
        Batching(max_messages=0)


def test_cumulative_ack_covers_every_source_up_to_its_message() -> None:
    log = CumulativeAckLog[int]()
    ids = [MessageId("t", 1, n, lane=n % 2) for n in range(6)]
    numbers = [log.handed_out(one.lane, one) for one in ids]
    assert log.covered(numbers[2], ids[2].lane, ids[2]) == {0: ids[2], 1: ids[1]}
    assert log.covered(numbers[1], ids[1].lane, ids[1]) == {}
    assert log.covered(numbers[5], ids[5].lane, ids[5]) == {0: ids[4], 1: ids[5]}


def test_ack_of_a_former_source_covers_nothing() -> None:
    log = CumulativeAckLog[str]()
    before = MessageId("t", 1, 5, lane=0)
    number = log.handed_out("old", before)
    log.forget("old")
    assert log.covered(number, "new", before) == {}
    again = log.handed_out("new", before)
    assert log.covered(again, "new", before) == {"new": before}


def test_thinned_log_never_covers_too_much() -> None:
    log = CumulativeAckLog[int]()
    ids = [MessageId("t", 1, n, lane=n % 2) for n in range(KEPT_MAX * 5)]
    numbers = [log.handed_out(one.lane, one) for one in ids]
    middle = len(ids) // 2
    covered = log.covered(numbers[middle], ids[middle].lane, ids[middle])
    assert covered[ids[middle].lane] == ids[middle]
    assert covered[1 - ids[middle].lane].entry < middle
    last = log.covered(numbers[-1], ids[-1].lane, ids[-1])
    assert {one.entry for one in last.values()} <= {len(ids) - 1, len(ids) - 2, len(ids) - 3, len(ids) - 4}
