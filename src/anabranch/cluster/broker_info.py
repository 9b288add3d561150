"""What a broker tells the others about itself, under `/cluster/brokers/<id>`. A value and its codec."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from anabranch.cluster.load_report import Load
from anabranch.cluster.slot_assignment import Member
from anabranch.model.broker_incarnation import BrokerIncarnation
from anabranch.model.errors import Error


class BadBrokerInfo(Error):
    """A registration that this release does not understand."""

    code = "bad-broker-card"


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    broker: str
    incarnation: int
    service_url: str
    http_url: str
    volume_id: str  # brokers of one cluster work on one volume
    version: str
    started_ms: int
    service_url_tls: str | None = None
    http_url_tls: str | None = None
    is_draining: bool = False
    load: float = 0.0  # bytes per second, in and out
    load_serial: int = -1  # of the table under which it was measured; -1: never
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
    """Fields of later releases are passed over."""
    try:
        record = json.loads(data)
        info = BrokerInfo(**{name: record[name] for name in BrokerInfo.__dataclass_fields__ if name in record})
        return replace(info, load_slots=tuple((int(slot), float(load)) for slot, load in info.load_slots))
    except (ValueError, TypeError, KeyError) as error:
        raise BadBrokerInfo(f"a broker's registration cannot be read: {error}") from error
