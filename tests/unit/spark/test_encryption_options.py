"""Options of source and sink for encryption."""

from __future__ import annotations

import pickle

import pytest

from anabranch.client.encryption.options import CryptoFailure
from anabranch.spark.client.access import BadSparkOption
from anabranch.spark.encryption_options import NamedFunction, decryption_of, encryption_of
from anabranch.spark.options import SourceOptions
from anabranch.spark.sink.topic_writer import OnReplay
from anabranch.spark.sink.writers import SinkOptions

NOTHING: dict[str, str] = {}
BASE = {"serviceUrl": "pulsar://h:6650", "topic": "t"}
FUNCTION = f"{__name__}:key"


def key(name: str, *metadata: object) -> str:
    return f"key of {name}"


def test_files_and_functions_travel_to_executors() -> None:
    sink = SinkOptions.of({**BASE, "encryptionKeys": "app=/keys/app.pem, audit=/keys/a.pem"}).outlet
    assert sink.encryption is not None and sink.encryption.recipients == ("app", "audit")
    assert sink.on_replay is OnReplay.IGNORE
    source = SourceOptions.of({**BASE, "decryptionKeyFunction": FUNCTION, "cryptoFailure": "DISCARD"}, streaming=True)
    copied = pickle.loads(pickle.dumps(source)).decryption
    assert copied.on_failure is CryptoFailure.DISCARD
    assert copied.keys("app", {}) == "key of app"
    assert NamedFunction(FUNCTION)("x") == "key of x"


def test_without_options_nothing_is_encrypted() -> None:
    assert SinkOptions.of(BASE).outlet.encryption is None
    assert SinkOptions.of(BASE).outlet.on_replay is OnReplay.FAIL
    assert SourceOptions.of(BASE, streaming=False).decryption is None


BAD_SINK = {
    "a key": ({"encryptionKeys": "-----BEGIN PUBLIC KEY-----\nMII"}, "names of files, not keys"),
    "no pair": ({"encryptionKeys": "/keys/app.pem"}, "like app=/keys/app.pem"),
    "both": ({"encryptionKeys": "a=b", "encryptionKeyFunction": FUNCTION}, "exclude each other"),
    "no names": ({"encryptionKeyFunction": FUNCTION}, "at least one recipient"),
    "only names": ({"encryptionRecipients": "app"}, "goes with encryptionKeys"),
    "unknown name": ({"encryptionKeys": "a=b", "encryptionRecipients": "c"}, "no public key for 'c'"),
    "function": ({"encryptionKeyFunction": "key", "encryptionRecipients": "c"}, "package.module:function"),
    "replay": ({"encryptionKeys": "a=b", "onNonDeterministicReplay": "fail"}, "cannot be compared"),
}


@pytest.mark.parametrize("case", BAD_SINK)
def test_bad_options_of_the_sink_are_refused(case: str) -> None:
    options, text = BAD_SINK[case]
    with pytest.raises(BadSparkOption, match=text) as caught:
        SinkOptions.of({**BASE, **options})
    assert "MII" not in caught.value.reason
    assert encryption_of(NOTHING.get) is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cryptoFailure": "deliver"}, "no place for the wrapped data keys"),
        ({"cryptoFailure": "ignore"}, "one of fail, discard, deliver"),
        ({"decryptionKeys": "app"}, "like app=/keys/app.pem"),
    ],
)
def test_bad_options_of_the_source_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadSparkOption, match=text):
        SourceOptions.of({**BASE, **options}, streaming=False)
    assert decryption_of(NOTHING.get) is None
