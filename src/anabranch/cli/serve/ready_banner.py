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
    storage_url: str = ""  # empty: files below `data`

    def __str__(self) -> str:
        durability = "" if self.sync != "none" else "   (sync = none: a crash loses confirmed messages)"
        more_urls = [url for url in self.tls_urls if url not in (self.service_url, self.http_url)]
        details = f"anabranch admin --admin-url {self.http_url} brokers details"
        is_encrypted = self.service_url.startswith("pulsar+ssl:")
        trust = ", tls_trust_certs_file_path='CA.pem'" if is_encrypted else ""
        return "\n".join(
            [
                f"Anabranch {self.version} is ready after {self.seconds:.2f} s",
                f"  clients   {self.service_url}",
                f"  HTTP      {self.http_url}",
                *([f"  TLS       {' and '.join(more_urls)}"] if more_urls else []),
                f"  data      {self.storage_url.partition('?')[0] or f'{self.data}{durability}'}",
                *([f"  brokers   {self.brokers} processes: {details}"] if self.brokers > 1 else []),
                "",
                "  pip install pulsar-client",
                f"  python -c \"import pulsar; c = pulsar.Client('{self.service_url}'{trust});"
                " print(c.create_producer('hello').send(b'world')); c.close()\"",
            ]
        )
