"""Private keys from applications: order while they are fetched, retries, failures; and the rotation of data keys."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from anabranch.client.config import Backoff
from anabranch.client.consumer.segment.key_wait import KeyWait
from anabranch.client.context import ClientContext
from anabranch.client.encryption.data_key_rotation import DataKeyRotation
from anabranch.client.encryption.decryptor import RETRY_SECONDS, Decryptor
from anabranch.client.encryption.entry_cipher import EntryCipher
from anabranch.client.encryption.key_fetcher import KeyFetcher, decryption_of
from anabranch.client.encryption.options import Decryption, Encryption, EncryptionKey
from anabranch.client.errors import DecryptionFailed, KeyUnavailable, UnusableKey
from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.entry import Bytes, build_entry, seal_entry
from anabranch.runtime.tasks import TaskOwner
from tests.support.in_memory.key_pairs import ed25519_pair, rsa_pair
from tests.support.in_memory.simulated_loop import LoopClock, run_simulated

TIMEOUT_S = 30.0
QUICK = Backoff(initial=0.1, maximum=1.0)


def context() -> ClientContext:
    return ClientContext(cast(Any, None), QUICK, LoopClock(), random.Random(1), cast(Any, None))


async def cipher_for(*names: str) -> EntryCipher:
    made = EntryCipher()
    keys = {name: rsa_pair(number).public for number, name in enumerate(names)}
    rotation = DataKeyRotation(Encryption(keys), made, context(), TIMEOUT_S)
    await rotation.open("t")
    await rotation.close()
    return made


def entry(cipher: EntryCipher, value: bytes) -> bytes:
    of = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, uncompressed_size=len(value))
    body = cipher.encrypted(of, value)
    return seal_entry(of, body)


class Reader:
    """What a segment consumer does with its deliveries."""

    def __init__(self, keys: Any, tasks: TaskOwner, clock: LoopClock | None = None) -> None:
        decryptor, fetcher = decryption_of(Decryption(keys), context(), tasks, TIMEOUT_S)
        assert fetcher is not None
        self.decryptor: Decryptor = decryptor
        self.fetcher: KeyFetcher = fetcher
        self.read: list[bytes] = []
        self.errors: list[str] = []
        self.changed = asyncio.Event()
        self.wait = KeyWait(fetcher.prepare, self._deliver)

    def _deliver(self, body: Any, payload: Bytes) -> None:
        try:
            self.read.append(bytes(self.decryptor.read(payload).data))
        except DecryptionFailed as error:
            self.errors.append(error.reason)
        self.changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(600.0):  # simulated
            while len(self.read) + len(self.errors) < count:
                self.changed.clear()
                await self.changed.wait()


def test_entries_keep_their_order_while_a_key_is_fetched() -> None:
    async def story() -> None:
        first, second = await cipher_for("a"), await cipher_for("b", "a")
        asked: list[str] = []

        async def key(name: str, metadata: Mapping[str, str]) -> bytes | None:
            asked.append(name)
            await asyncio.sleep(5.0 if name == "a" else 1.0)
            return rsa_pair(0).private if name in "ab" else None

        tasks = TaskOwner("test")
        reader = Reader(key, tasks)
        payloads = [build_entry(b"0"), entry(first, b"1"), build_entry(b"2"), entry(second, b"3"), entry(first, b"4")]
        for payload in payloads:
            reader.wait.add(None, payload)
        assert reader.read == [b"0"] and len(reader.wait) == 4
        await reader.until(5)
        assert reader.read == [b"0", b"1", b"2", b"3", b"4"]
        assert asked == ["a", "b"], "each data key is unwrapped once"
        reader.wait.add(None, entry(first, b"5"))
        assert reader.read[-1] == b"5"
        await tasks.close()

    run_simulated(story())


def test_entries_that_wait_are_dropped_with_the_attachment() -> None:
    async def story() -> None:
        cipher = await cipher_for("a")
        tasks = TaskOwner("test")

        async def key(name: str, metadata: Mapping[str, str]) -> bytes:
            await asyncio.sleep(1.0)
            return rsa_pair(0).private

        reader = Reader(key, tasks)
        reader.wait.add(None, entry(cipher, b"old"))
        reader.wait.clear()
        reader.wait.add(None, entry(cipher, b"new"))
        await reader.until(1)
        assert reader.read == [b"new"]
        await tasks.close()

    run_simulated(story())


def test_function_that_fails_is_asked_again_and_its_text_is_not_repeated() -> None:
    async def story() -> None:
        cipher = await cipher_for("a")
        tasks = TaskOwner("test")
        failures = [ConnectionError("token=hunter2"), TimeoutError()]

        def key(name: str, metadata: Mapping[str, str]) -> EncryptionKey:
            if failures:
                raise failures.pop()
            return EncryptionKey(rsa_pair(0).private)

        reader = Reader(key, tasks)
        reader.wait.add(None, entry(cipher, b"x"))
        await reader.until(1)
        assert reader.read == [b"x"]

        def never(name: str, metadata: Mapping[str, str]) -> bytes:
            raise ConnectionError("token=hunter2")

        reader = Reader(never, tasks)
        reader.wait.add(None, entry(cipher, b"x"))
        await reader.until(1)
        assert "its function raised ConnectionError" in reader.errors[0] and "hunter2" not in reader.errors[0]
        await tasks.close()

    run_simulated(story())


WRONG: dict[str, tuple[Callable[[str, Mapping[str, str]], Any], str]] = {
    "none": (lambda name, metadata: None, "there is no private key 'a'"),
    "unknown": (lambda name, metadata: dict[str, bytes]()[name], "there is no private key 'a'"),
    "another": (lambda name, metadata: rsa_pair(5).private, "not the one that the data key was wrapped for"),
    "kind": (lambda name, metadata: ed25519_pair().private, "Ed25519 keys are not supported"),
    "type": (lambda name, metadata: 7, "its function returned int"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_key_is_named_and_tried_again_after_a_while(case: str) -> None:
    async def story() -> None:
        cipher = await cipher_for("a")
        tasks = TaskOwner("test")
        answer, text = WRONG[case]
        asked = 0

        def key(name: str, metadata: Mapping[str, str]) -> Any:
            nonlocal asked
            asked += 1
            return answer(name, metadata)

        reader = Reader(key, tasks)
        for count in (1, 2):
            reader.wait.add(None, entry(cipher, b"x"))
            await reader.until(count)
        assert asked == 1 and all(text in one for one in reader.errors), reader.errors
        await asyncio.sleep(RETRY_SECONDS + 1)
        reader.wait.add(None, entry(cipher, b"x"))
        await reader.until(3)
        assert asked == 2
        await tasks.close()

    run_simulated(story())


def test_files_are_checked_when_a_consumer_opens(tmp_path: Path) -> None:
    async def story() -> None:
        good, bad = tmp_path / "good.pem", tmp_path / "bad.pem"
        good.write_bytes(rsa_pair().private)
        bad.write_text("nothing")
        tasks = TaskOwner("test")
        await Reader({"a": good}, tasks).fetcher.check()
        for file, text in ((bad, "no PEM block"), (tmp_path / "missing.pem", "No such file"), (tmp_path, "directory")):
            with pytest.raises(UnusableKey, match=text):
                await Reader({"a": good, "b": str(file)}, tasks).fetcher.check()

    run_simulated(story())


def test_data_key_is_replaced_and_failures_keep_the_present_one(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        pairs = [rsa_pair(0), rsa_pair(1)]
        answers: list[Any] = [
            pairs[0].public,
            OSError("secret"),
            pairs[0].private,
            EncryptionKey(pairs[1].public, {"v": "2"}),
        ]
        asked = asyncio.Event()

        async def key(name: str) -> Any:
            if not answers:
                await asyncio.get_running_loop().create_future()
            answer = answers.pop(0)
            if not answers:
                asked.set()
            if isinstance(answer, Exception):
                raise answer
            return answer

        cipher = EntryCipher()
        rotation = DataKeyRotation(Encryption(key, ["a"], rotate_every=3600.0), cipher, context(), TIMEOUT_S)
        await rotation.open("t")
        before = pb.MessageMetadata()
        cipher.encrypted(before, b"x")
        began = asyncio.get_running_loop().time()
        await asyncio.wait_for(asked.wait(), 7200.0)
        await asyncio.sleep(0)
        assert 3600.0 < asyncio.get_running_loop().time() - began < 3610.0
        after = pb.MessageMetadata()
        cipher.encrypted(after, b"x")
        assert after.encryption_keys[0].value != before.encryption_keys[0].value
        assert [(one.key, one.value) for one in after.encryption_keys[0].metadata] == [("v", "2")]
        await rotation.close()

    with caplog.at_level(logging.WARNING):
        run_simulated(story())
    reasons = [str(getattr(one, "reason", "")) for one in caplog.records]
    assert len(reasons) == 2 and not any("secret" in one or "BEGIN" in one for one in reasons), reasons


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "unknown": (lambda name: None, UnusableKey, "there is no public key of this name"),
    "private": (lambda name: rsa_pair().private, UnusableKey, "it is a private key"),
    "failing": (lambda name: 1 / 0, KeyUnavailable, "raised ZeroDivisionError"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_producer_does_not_open_without_its_keys(case: str) -> None:
    async def story() -> None:
        key, kind, text = REFUSED[case]
        with pytest.raises(kind, match=text):
            await DataKeyRotation(Encryption(key, ["a"]), EntryCipher(), context(), TIMEOUT_S).open("t")

    run_simulated(story())


def test_too_many_recipients_are_refused() -> None:
    async def story() -> None:
        keys = {f"key-{number}": rsa_pair().public for number in range(40)}
        with pytest.raises(UnusableKey, match="40 recipients add"):
            await DataKeyRotation(Encryption(keys), EntryCipher(), context(), TIMEOUT_S).open("t")

    run_simulated(story())
