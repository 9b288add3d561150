"""Advertised listeners: how they are written, what is refused, which address a client gets."""

from __future__ import annotations

import pytest

from anabranch.broker.placement import Address, Listener, UnknownListener
from anabranch.cluster.broker_info import BrokerInfo, decode_broker_info, encode_broker_info
from anabranch.node.adapters.placement import address_of
from anabranch.node.settings.advertised_listeners import complaint_about, parse_listeners

WRITTEN = "inside:pulsar://10.0.0.5:6650, outside:pulsar://b1.example.com:6650,outside:pulsar+ssl://b1.example.com:6651"
INSIDE = Listener("inside", "pulsar://10.0.0.5:6650", None)
OUTSIDE = Listener("outside", "pulsar://b1.example.com:6650", "pulsar+ssl://b1.example.com:6651")


def test_listeners_have_one_address_per_scheme() -> None:
    assert parse_listeners(WRITTEN) == (INSIDE, OUTSIDE)
    assert parse_listeners("") == parse_listeners(" , ") == ()
    assert parse_listeners("a:pulsar://[::1]:6650")[0].service_url == "pulsar://[::1]:6650"


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("pulsar://h:1", "is not an address"),
        ("a b:pulsar://h:1", "is not NAME:pulsar://HOST:PORT"),
        ("inside", "is not NAME:pulsar://HOST:PORT"),
        ("inside:http://h:1", "is not an address"),
        ("inside:pulsar://h", "is not an address"),
        ("inside:pulsar://h:x", "is not an address"),
        ("inside:pulsar://:6650", "is not an address"),
        ("inside:pulsar://h:1/path", "is not an address"),
        ("a:pulsar://h:1,a:pulsar://g:1", "has two addresses with pulsar://"),
    ],
)
def test_what_is_wrong_is_said(written: str, complaint: str) -> None:
    assert complaint in complaint_about(written, "", is_tls_on=True, is_tls_only=False)


def test_listeners_must_fit_the_ports() -> None:
    assert complaint_about(WRITTEN, "outside", is_tls_on=True, is_tls_only=False) == ""
    assert "not among the listeners" in complaint_about(WRITTEN, "lan", is_tls_on=True, is_tls_only=False)
    assert "TLS is off" in complaint_about(WRITTEN, "", is_tls_on=False, is_tls_only=False)
    assert "tls.only is set" in complaint_about(WRITTEN, "", is_tls_on=True, is_tls_only=True)
    assert "has no pulsar:// address" in complaint_about("a:pulsar+ssl://h:1", "", is_tls_on=True, is_tls_only=False)
    assert complaint_about("a:pulsar+ssl://h:1", "", is_tls_on=True, is_tls_only=True) == ""


def test_clients_get_the_addresses_of_the_listener_that_they_name() -> None:
    bound = Address("pulsar://10.0.0.5:6650", "http://10.0.0.5:8080", listeners=(INSIDE, OUTSIDE))
    assert bound.of_listener("") is bound.of_listener(None) is bound
    outside = bound.of_listener("outside")
    assert (outside.service_url, outside.service_url_tls) == OUTSIDE[1:]
    assert outside.http_url == bound.http_url
    with pytest.raises(UnknownListener, match="no advertised listener 'lan', it has: inside, outside"):
        bound.of_listener("lan")
    with pytest.raises(UnknownListener, match="it has: none"):
        Address("pulsar://h:1", "http://h:2").of_listener("lan")


def test_other_brokers_know_the_listeners_of_an_owner() -> None:
    info = BrokerInfo("b1", 3, "pulsar://h:1", "http://h:2", "v", "1", 5, listeners=(INSIDE, OUTSIDE))
    assert address_of(decode_broker_info(encode_broker_info(info))).listeners == (INSIDE, OUTSIDE)
