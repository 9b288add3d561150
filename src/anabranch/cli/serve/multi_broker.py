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

PASSED_ON = ("host", "advertised_host", "sync", "insecure", "log_level", "log_format")


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
    if not settings.network.port or not settings.http.port:
        raise click.UsageError("several brokers share one port: give --port and --http-port numbers, not 0")
    clock = SystemClock()
    commands = [
        broker_command(arguments(settings, number, config, assignments, flags)) for number in range(1, brokers + 1)
    ]

    def print_banner() -> None:
        print(
            Greeting(
                version=__version__,
                service_url=f"pulsar://{settings.advertised_host}:{settings.network.port}",
                http_url=f"http://{settings.advertised_host}:{settings.http.port}",
                data=settings.storage.dir.absolute(),
                sync=settings.storage.sync,
                seconds=clock.monotonic() - began,
                brokers=brokers,
            ),
            flush=True,
        )

    return asyncio.run(Supervisor(commands, clock, print_banner).run())


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
        "--set", f"cluster.front_port={settings.network.port}",
        "--set", f"cluster.front_http_port={settings.http.port}",
    ]  # fmt: skip


def _flag(name: str, value: Any) -> tuple[str, ...]:
    flag = f"--{name.replace('_', '-')}"
    return (flag,) if value is True else (flag, str(value))
