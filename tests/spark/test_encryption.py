"""Encrypted rows through Spark: the sink encrypts, the source decrypts, and the SDK reads and writes the same."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from anabranch import Decryption, Encryption, blocking
from tests.spark.test_sink import rows_of, source, stream_writer, writer
from tests.support.in_memory.key_pairs import rsa_pair
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.stored_text import files_with

pytestmark = pytest.mark.slow

SECRET = "a plain text that no broker may see"


@pytest.fixture
def topic() -> str:
    return f"topic://public/default/encrypted-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str]:
    """`encryptionKeys` and `decryptionKeys`."""
    public, private = tmp_path / "app.pub.pem", tmp_path / "app.pem"
    public.write_bytes(rsa_pair().public)
    private.write_bytes(rsa_pair().private)
    return f"app={public}", f"app={private}"


def reader(spark: Any, broker: BrokerProcess, topic: str, **options: str) -> Any:
    made = spark.read.format("anabranch").option("serviceUrl", broker.service_url).option("topic", topic)
    return made.options(**options).load()


@pytest.mark.parametrize("delivery", ["effectively-once", "at-least-once"])
def test_rows_are_encrypted_and_decrypted(
    spark: Any, broker: BrokerProcess, topic: str, keys: tuple[str, str], delivery: str
) -> None:
    rows = rows_of(spark, 200).selectExpr("key", f"concat('{SECRET} ', value) value")
    options = {"delivery": delivery, "encryptionKeys": keys[0], "compression": "zstd"}
    for _ in range(2):  # again: recognised by its key, if it is effectively-once
        again = {"idempotencyKey": "job"} if delivery == "effectively-once" else {}
        writer(rows, broker, topic, **options, **again).save()
    count = 200 if delivery == "effectively-once" else 400
    found = [row["value"].decode() for row in reader(spark, broker, topic, decryptionKeys=keys[1]).collect()]
    assert sorted(found) == sorted([row["value"] for row in rows.collect()] * (count // 200))
    assert reader(spark, broker, topic, cryptoFailure="discard").count() == 0
    with pytest.raises(PySparkException, match="the entry is encrypted"):
        reader(spark, broker, topic).collect()
    assert files_with(broker.data, SECRET.encode()) == []


def test_stream_decrypts_what_the_sdk_sent_and_encrypts_for_it(
    spark: Any, broker: BrokerProcess, topic: str, keys: tuple[str, str], tmp_path: Path
) -> None:
    output = f"{topic}-out"
    with blocking.connect(broker.service_url) as client:
        with client.producer(topic, encryption=Encryption({"app": rsa_pair().public})) as producer:
            producer.send_batch([b"%d" % number for number in range(50)], ["k"] * 50, timeout=30)
        rows = source(spark, broker, topic, decryptionKeys=keys[1])
        query = stream_writer(rows, broker, output, tmp_path / "checkpoint", encryptionKeys=keys[0]).start()
        query.awaitTermination(120)
        assert query.exception() is None
        decryption = Decryption({"app": rsa_pair().private})
        with client.stream_consumer(output, subscription="s", start="earliest", decryption=decryption) as consumer:
            found: list[bytes] = []
            while len(found) < 50:
                message = consumer.receive(timeout=30)
                assert message is not None
                found.append(message.value)
        assert found == [b"%d" % number for number in range(50)]
