"""Options of metadata URLs: TLS and credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.metadata.interface import UnknownStore
from anabranch.metadata.open import bare_store, without_credentials
from anabranch.metadata.store_security import (
    NO_SECURITY,
    CredentialsUnreadable,
    StoreSecurity,
    Tls,
    read_secret,
    split_options,
)
from anabranch.runtime.clock import SystemClock
from anabranch.zookeeper.access import Access
from anabranch.zookeeper.jute import digest_acl


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("//h:1/x", NO_SECURITY),
        ("//h:1/x?tls=false", NO_SECURITY),
        ("//h:1/x?tls=true", StoreSecurity(Tls())),
        ("//h:1/x?ca=/ca.pem", StoreSecurity(Tls("/ca.pem"))),
        ("//h:1/x?ca=/a%20b&cert=/c&key=/k&server-name=n", StoreSecurity(Tls("/a b", "/c", "/k", "n"))),
        ("//h:1/x?user=me&password-file=/p", StoreSecurity(None, "me", "/p")),
    ],
)
def test_options_are_split_from_the_url(written: str, expected: StoreSecurity) -> None:
    assert split_options("zk", written) == ("//h:1/x", expected)


def test_oxia_has_a_token() -> None:
    assert split_options("oxia", "//h:1/n?token-file=/t")[1] == StoreSecurity(token_file="/t")


@pytest.mark.parametrize(
    ("scheme", "query", "text"),
    [
        ("zk", "cert=/c", "'cert' of the metadata URL needs 'key'"),
        ("zk", "key=/k", "'key' of the metadata URL needs 'cert'"),
        ("etcd", "user=me", "'user' of the metadata URL needs 'password-file'"),
        ("etcd", "password-file=/p", "needs 'user'"),
        ("zk", "user=a:b&password-file=/p", "no colon"),
        ("zk", "ca=ca.pem", "absolute path"),
        ("zk", "tls=yes", "true or false"),
        ("zk", "tls=false&ca=/c", "contradicts"),
        ("zk", "ca=/a&ca=/b", "twice"),
        ("zk", "ca=", "no value"),
        ("zk", "token-file=/t", "not an option of a zk: URL"),
        ("oxia", "user=me&password-file=/p", "not an option of a oxia: URL"),
    ],
)
def test_wrong_options_are_refused_by_name(scheme: str, query: str, text: str) -> None:
    with pytest.raises(UnknownStore, match=text):
        bare_store(f"{scheme}://h:1/x?{query}", SystemClock())


@pytest.mark.parametrize("name", ["password", "token"])
def test_a_secret_in_the_url_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(UnknownStore, match=f"{name}-file=FILE") as caught:
        bare_store(f"etcd://h:1/x?{name}=hush", SystemClock())
    assert "hush" not in str(caught.value)


def test_shown_url_has_no_options() -> None:
    assert without_credentials("etcd://h:1/x?user=me&password-file=/p") == "etcd://h:1/x"


def test_secret_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "word"
    path.write_text("  hush \nmore\n")
    assert read_secret("password", str(path)) == "hush"


@pytest.mark.parametrize("content", [b"", b"\n", b"   \nhush", b"\xff\xfe", b"x" * 100_000])
def test_unusable_secret_is_named_by_its_file_only(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "word"
    path.write_bytes(content)
    with pytest.raises(CredentialsUnreadable, match="word") as caught:
        read_secret("password", str(path))
    assert "hush" not in str(caught.value)


def test_files_are_checked_before_a_connection_is_made(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("not a certificate")
    for security in (
        StoreSecurity(Tls("/not/there")),
        StoreSecurity(Tls(str(broken))),
        StoreSecurity(None, "me", "/not/there"),
        StoreSecurity(token_file="/not/there"),
    ):
        with pytest.raises(CredentialsUnreadable):
            security.check_files()


def test_access_does_not_show_its_password() -> None:
    assert "hush" not in repr(Access(digest="me:hush"))


def test_access_list_of_a_user_has_zookeepers_hash() -> None:
    """The hash that ZooKeeper's documentation gives for this user and password."""
    assert b"super:D/InIHSb7yEEbrWz8b9l71RjZJU=" in digest_acl("super:test")
