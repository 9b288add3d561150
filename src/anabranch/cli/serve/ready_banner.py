"""The text that a broker prints when it is ready: addresses, data directory, how to connect. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Greeting:
    version: str
    service_url: str
    http_url: str
    data: Path
    sync: str
    seconds: float  # from start to ready
    tls_urls: tuple[str, ...] = ()
    brokers: int = 1

    def __str__(self) -> str:
        durability = "" if self.sync != "none" else "   (sync = none: a crash loses confirmed messages)"
        return "\n".join(
            [
                f"Anabranch {self.version} is ready after {self.seconds:.2f} s",
                f"  clients   {self.service_url}",
                f"  HTTP      {self.http_url}",
                *([f"  TLS       {' and '.join(self.tls_urls)}"] if self.tls_urls else []),
                f"  data      {self.data}{durability}",
                *(
                    [f"  brokers   {self.brokers} processes; see `anabranch admin brokers list`"]
                    if self.brokers > 1
                    else []
                ),
                "",
                "  pip install pulsar-client",
                f"  python -c \"import pulsar; c = pulsar.Client('{self.service_url}');"
                " print(c.create_producer('hello').send(b'world')); c.close()\"",
            ]
        )
