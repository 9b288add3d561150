"""Options of encryption: checked at once, and never shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch import CryptoFailure, DeadLetter, Decryption, Encryption, EncryptionKey
from anabranch.client.encryption.options import check_decryption, check_encryption
from anabranch.client.errors import BadOption
from anabranch.client.opening import check_dead_letter
from tests.support.in_memory.key_pairs import rsa_pair

PEM = rsa_pair().private

BAD: dict[str, tuple[Callable[[], object], str]] = {
    "no keys": (lambda: Encryption({}), "at least one recipient"),
    "no names for a function": (lambda: Encryption(lambda name: b""), "at least one recipient"),
    "unknown recipient": (lambda: Encryption({"a": b"x"}, ["a", "b"]), "no public key for 'b'"),
    "recipients as text": (lambda: Encryption({"a": b"x"}, "a"), "must be a list of names"),
    "rotation": (lambda: Encryption({"a": b"x"}, rotate_every=0), "rotate_every must be above 0"),
    "a key itself": (lambda: Encryption(PEM), "Encryption.keys must be a mapping"),  # type: ignore[arg-type]  # meant
    "no file": (lambda: Decryption({"a": 3}), "must map names"),  # type: ignore[dict-item]  # meant
    "failure": (lambda: Decryption({}, on_failure="ignore"), "one of fail, discard, deliver"),
    "metadata": (lambda: EncryptionKey(PEM, {"version": 1}), "must be text"),  # type: ignore[dict-item]  # meant
    "option": (lambda: check_encryption(PEM), "encryption must be an Encryption"),  # type: ignore[arg-type]  # meant
    "dead letters": (
        lambda: check_dead_letter(DeadLetter(max_redeliveries=1), Decryption({})),
        "would store plain text",
    ),
    "dead letters of ciphertext": (
        lambda: check_dead_letter(
            DeadLetter(max_redeliveries=1, encryption=Encryption({"a": PEM})), Decryption({}, on_failure="deliver")
        ),
        "exclude each other",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_option_is_refused_without_showing_keys(case: str) -> None:
    make, text = BAD[case]
    with pytest.raises(BadOption) as caught:
        make()
    assert text in caught.value.reason
    assert "BEGIN" not in caught.value.reason


def test_recipients_are_the_names_of_the_keys_unless_given() -> None:
    assert Encryption({"a": b"x", "b": b"y"}).recipients == ("a", "b")
    assert Encryption({"a": b"x", "b": b"y"}, ["b", "b"]).recipients == ("b",)
    assert Decryption({}).on_failure is CryptoFailure.FAIL


@pytest.mark.parametrize("made", [Encryption({"a": PEM}), Decryption({"a": PEM.decode()}), EncryptionKey(PEM)])
def test_keys_are_not_in_repr(made: object) -> None:
    assert "BEGIN" not in repr(made) and "keys" not in repr(made)


@pytest.mark.parametrize("check", [check_encryption, check_decryption])
def test_missing_extra_is_named(check: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if "Editable" not in repr(one)])
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(BadOption, match=r"pip install 'anabranch\[crypto\]'"):
        check(Encryption({"a": PEM}) if check is check_encryption else Decryption({"a": PEM}))
    check_encryption(None)
    check_decryption(None)
