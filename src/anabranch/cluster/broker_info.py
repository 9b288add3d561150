"""Registration record of a broker, stored under `/cluster/brokers/<id>`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from anabranch.cluster.load_report import Load
from anabranch.cluster.slot_assignment import Member
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.model.errors import Error


class BadBrokerInfo(Error):
    """The registration was written by a release that this one does not understand."""

    code = "bad-broker-card"


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    broker: str
    incarnation: int
    service_url: str
    http_url: str
    volume_id: str  # the brokers of one cluster share one volume
    version: str
    started_ms: int
    service_url_tls: str | None = None
    http_url_tls: str | None = None
    listeners: tuple[tuple[str, str | None, str | None], ...] = ()  # advertised: name, address, address with TLS
    is_draining: bool = False
    load: float = 0.0  # bytes per second, in and out
    load_serial: int = -1  # of the table at the time of the measurement; -1: never measured
    load_slots: tuple[tuple[int, float], ...] = ()  # of the busiest and the idlest slots

    @property
    def broker_incarnation(self) -> BrokerIncarnation:
        return BrokerIncarnation(self.broker, self.incarnation)

    @property
    def member(self) -> Member:
        load = None if self.load_serial < 0 else Load(self.load_serial, self.load, self.load_slots)
        return Member(self.broker_incarnation, self.is_draining, load)

    def with_load(self, load: Load) -> BrokerInfo:
        return replace(self, load=load.total, load_serial=load.serial, load_slots=load.slots)


def encode_broker_info(info: BrokerInfo) -> bytes:
    return json.dumps(asdict(info), separators=(",", ":")).encode()


def decode_broker_info(data: bytes) -> BrokerInfo:
    """Unknown fields, from later releases, are ignored."""
    try:
        record = json.loads(data)
        info = BrokerInfo(**{name: record[name] for name in BrokerInfo.__dataclass_fields__ if name in record})
        return replace(
            info,
            load_slots=tuple((int(slot), float(load)) for slot, load in info.load_slots),
            listeners=tuple((str(name), url, url_tls) for name, url, url_tls in info.listeners),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise BadBrokerInfo(f"broker registration cannot be decoded: {error}") from error
