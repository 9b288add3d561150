"""All settings of a node in one tree, one group per part. `runtime.settings` loads it from file, environment and flags;
`anabranch config sample` prints it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.broker.schemas.settings import SchemaSettings
from anabranch.broker.settings import BrokerSettings
from anabranch.node.settings.advertised_listeners import complaint_about
from anabranch.node.settings.cluster import ClusterSettings
from anabranch.node.settings.scalable_topics import ScalableTopicSettings
from anabranch.node.settings.security import SecuritySettings, TlsSettings
from anabranch.rest.settings import HttpSettings
from anabranch.runtime.settings import require_all
from anabranch.storage.settings import StorageSettings
from anabranch.storage.topic.topic_log import TopicLogSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    host: str = field(default="127.0.0.1", metadata={"help": "address the binary port listens on"})
    port: int = field(default=6650, metadata={"help": "binary port; 0 = any free one"})
    advertised_host: str = field(default="", metadata={"help": "host in addresses that clients get; empty = host"})
    advertised_listeners: str = field(
        default="",
        metadata={
            "help": "addresses by listener name, for clients that ask for one: "
            "internal:pulsar://HOST:PORT,external:pulsar://HOST:PORT (Pulsar: advertisedListeners)"
        },
    )
    internal_listener: str = field(
        default="",
        metadata={"help": "listener of clients that name none; empty = the first (Pulsar: internalListenerName)"},
    )
    insecure: bool = field(default=False, metadata={"help": "allow listening beyond loopback without authentication"})

    def __post_init__(self) -> None:
        require_all(
            (0 <= self.port <= 65535, "network.port", "between 0 and 65535"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    url: str = field(
        default="",
        metadata={
            "help": "memory:, sqlite:///DIR, zk://, etcd:// or oxia://HOST:PORT…; empty = sqlite below storage.dir"
        },
    )
    deadline_ms: int = field(
        default=8_000, metadata={"help": "how long one operation on the store may last, reconnecting included"}
    )

    def __post_init__(self) -> None:
        require_all((self.deadline_ms >= 100, "metadata.deadline_ms", "at least 100"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    level: str = field(default="info", metadata={"help": "debug, info, warning or error"})
    form: str = field(default="text", metadata={"help": "text or json"})

    def __post_init__(self) -> None:
        require_all(
            (self.level in ("debug", "info", "warning", "error"), "log.level", "debug, info, warning or error"),
            (self.form in ("text", "json"), "log.form", "text or json"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Listening beyond loopback needs authentication, or an explicit `insecure`."""

    network: NetworkSettings = field(default_factory=NetworkSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    metadata: MetadataSettings = field(default_factory=MetadataSettings)
    storage: StorageSettings = field(default_factory=lambda: StorageSettings(dir=Path("anabranch-data")))
    topics: TopicLogSettings = field(default_factory=TopicLogSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    schemas: SchemaSettings = field(default_factory=SchemaSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    log: LogSettings = field(default_factory=LogSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    scalable_topics: ScalableTopicSettings = field(default_factory=ScalableTopicSettings)

    def __post_init__(self) -> None:
        listeners = complaint_about(
            self.network.advertised_listeners,
            self.network.internal_listener,
            is_tls_on=self.tls.is_on,
            is_tls_only=self.tls.only,
        )
        text = "only loopback is allowed without authentication (see security.methods, or set {} to listen elsewhere)"
        exposed = not self.security.methods
        require_all(
            (
                not exposed or self.network.insecure or is_loopback(self.network.host),
                "network.host",
                text.format("network.insecure"),
            ),
            (
                not exposed or self.http.insecure or is_loopback(self.http.host),
                "http.host",
                text.format("http.insecure"),
            ),
            (
                not (self.storage.url and self.cluster.enabled and not self.metadata.url),
                "metadata.url",
                "brokers that share no directory need a metadata store that they share, for example zk://HOST:PORT/PATH",
            ),
            (not listeners, "network.advertised_listeners", listeners),
            (
                "tls" not in self.security.methods or self.tls.ca_file is not None,
                "security.methods",
                "client certificates (tls) need tls.cert_file, tls.key_file and tls.ca_file",
            ),
        )

    @property
    def metadata_url(self) -> str:
        return self.metadata.url or f"sqlite:///{Path(self.storage.dir).absolute() / 'metadata'}"

    @property
    def advertised_host(self) -> str:
        return self.network.advertised_host or self.network.host


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
