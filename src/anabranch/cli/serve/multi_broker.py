"""`standalone --brokers N`: the commands of the broker processes, and the text printed when all are ready."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anabranch import __version__
from anabranch.cli.serve.ready_banner import Greeting
from anabranch.runtime.clock import SystemClock

if TYPE_CHECKING:
    from anabranch.node.settings.node import NodeSettings

PASSED_ON = (
    "storage",
    "host",
    "advertised_host",
    "sync",
    "insecure",
    "tls_cert",
    "tls_key",
    "tls_only",
    "log_level",
    "log_format",
)


def serve_many(
    settings: NodeSettings,
    brokers: int,
    config: Path | None,
    assignments: tuple[str, ...],
    flags: Mapping[str, Any],
    began: float,
) -> int:
    from anabranch.node.supervisor import Supervisor, broker_command

    if settings.metadata_url.startswith("memory:"):
        raise click.UsageError("several brokers need a metadata store that they can share; memory: is only one process")
    if not settings.tls.only and not (settings.network.port and settings.http.port):
        raise click.UsageError("several brokers share one port: give --port and --http-port numbers, not 0")
    if settings.tls.is_on and not (settings.tls.port and settings.tls.http_port):
        raise click.UsageError("several brokers share one port: give --tls-port and --tls-http-port numbers, not 0")
    if settings.network.advertised_listeners:
        raise click.UsageError(
            "network.advertised_listeners are the addresses of one broker: start each with `anabranch broker`"
        )
    clock = SystemClock()
    commands = [
        broker_command(arguments(settings, number, config, assignments, flags)) for number in range(1, brokers + 1)
    ]

    def print_banner() -> None:
        plain, encrypted = shared_urls(settings)
        service_url, http_url = plain or encrypted
        print(
            Greeting(
                version=__version__,
                service_url=service_url,
                http_url=http_url,
                tls_urls=encrypted,
                data=settings.storage.dir.absolute(),
                sync=settings.storage.sync,
                storage_url=settings.storage.url,
                seconds=clock.monotonic() - began,
                brokers=brokers,
            ),
            flush=True,
        )

    return asyncio.run(Supervisor(commands, clock, print_banner).run())


def shared_urls(settings: NodeSettings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Addresses of the shared ports, for clients and for HTTP: the plain ones, and those with TLS. Empty: none."""
    host, tls = settings.advertised_host, settings.tls
    plain = (f"pulsar://{host}:{settings.network.port}", f"http://{host}:{settings.http.port}")
    encrypted = (f"pulsar+ssl://{host}:{tls.port}", f"https://{host}:{tls.http_port}")
    return () if tls.only else plain, encrypted if tls.is_on else ()


def shared_ports(settings: NodeSettings) -> dict[str, int]:
    found: dict[str, int] = {}
    if not settings.tls.only:
        found |= {"cluster.front_port": settings.network.port, "cluster.front_http_port": settings.http.port}
    if settings.tls.is_on:
        found |= {"cluster.front_tls_port": settings.tls.port, "cluster.front_tls_http_port": settings.tls.http_port}
        found |= {"tls.port": 0, "tls.http_port": 0}
    return found


def arguments(
    settings: NodeSettings, number: int, config: Path | None, assignments: tuple[str, ...], flags: Mapping[str, Any]
) -> list[str]:
    """The command of one broker: the user's options, its private ports, and the shared ports."""
    given = [
        *(part for name in PASSED_ON if flags.get(name) is not None for part in _flag(name, flags[name])),
        *(() if config is None else ("--config", str(config))),
        *(part for text in assignments for part in ("--set", text)),
    ]
    return [
        "--metadata", settings.metadata_url,
        "--data", str(settings.storage.dir.absolute()),
        "--id", f"broker-{number}",
        "--port", "0",
        "--http-port", "0",
        *given,
        *(part for name, port in shared_ports(settings).items() for part in ("--set", f"{name}={port}")),
    ]  # fmt: skip


def _flag(name: str, value: Any) -> tuple[str, ...]:
    flag = f"--{name.replace('_', '-')}"
    return (flag,) if value is True else (flag, str(value))
