"""`anabranch standalone`: flags into settings, then hand over to `anabranch.node.standalone`.

Knows the names of the settings that have a flag of their own (`FLAGS`); every other one is reached with --set.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from anabranch import __version__
from anabranch.cli.greeting import Greeting
from anabranch.runtime.clock import SystemClock
from anabranch.runtime.logs import setup_logs
from anabranch.runtime.settings import Layer, env_layer, file_layer, load

DEFAULT_DATA = "anabranch-data"
FLAGS: Mapping[str, tuple[str, ...]] = {
    "data": ("storage.dir",),
    "host": ("network.host", "http.host"),
    "port": ("network.port",),
    "http_port": ("http.port",),
    "metadata": ("metadata.url",),
    "sync": ("storage.sync",),
    "log_level": ("log.level",),
    "log_format": ("log.form",),
    "insecure": ("network.insecure", "http.insecure"),
}


def flag_layer(flags: Mapping[str, Any], assignments: tuple[str, ...]) -> Layer:
    """The flags that were given, by setting name; `--set` last, because it is the most explicit."""
    values = {name: flags[flag] for flag, names in FLAGS.items() if flags.get(flag) is not None for name in names}
    complaints = []
    for text in assignments:
        name, equals, value = text.partition("=")
        if equals:
            values[name.strip()] = value.strip()
        else:
            complaints.append(f"--set {text}: is not like storage.sync=group")
    return Layer("command line", values, tuple(complaints))


def settings_layers(root: type[Any], config: Path | None, environ: Mapping[str, str], flags: Layer) -> list[Layer]:
    """In rising order of weight: built-in, file, environment, flags."""
    layers = [Layer("default", {"storage.dir": DEFAULT_DATA})]
    if config is not None:
        layers.append(file_layer(config))
    return [*layers, env_layer(root, environ), flags]


@click.command()
@click.option("--data", metavar="DIR", help=f"Where everything is kept (default: ./{DEFAULT_DATA}).")
@click.option("--host", metavar="ADDRESS", help="Address to listen on (default: 127.0.0.1).")
@click.option("--port", type=int, metavar="N", help="Port for clients (default: 6650; 0 = any free one).")
@click.option("--http-port", type=int, metavar="N", help="Port for HTTP (default: 8080; 0 = any free one).")
@click.option("--metadata", metavar="URL", help="memory: or sqlite:///DIR (default: SQLite under --data).")
@click.option("--sync", metavar="MODE", help="group, linger:Nms or none (default: group).")
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="TOML file; see `anabranch config sample`."
)
@click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Any setting, for example storage.sync=group."
)
@click.option(
    "--insecure", is_flag=True, default=None, help="Allow an address beyond loopback, without authentication."
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error (default: info).")
@click.option("--log-format", metavar="FORMAT", help="text or json (default: text).")
def standalone(config: Path | None, assignments: tuple[str, ...], **flags: Any) -> int:
    """Run one broker with everything it needs in this process.

    Clients connect to pulsar://localhost:6650; HTTP (lookup, admin, metrics) is on port 8080.
    """
    from anabranch.node.settings import NodeSettings

    clock = SystemClock()
    began = clock.monotonic()
    layers = settings_layers(NodeSettings, config, os.environ, flag_layer(flags, assignments))
    settings = load(NodeSettings, layers)
    setup_logs(settings.log.level, "json" if settings.log.form == "json" else "text")

    from anabranch.node.node import Node
    from anabranch.node.standalone import run_standalone

    def greet(node: Node) -> None:
        print(
            Greeting(
                version=__version__,
                service_url=node.service_url,
                http_url=node.http_url,
                data=settings.storage.dir.absolute(),
                sync=settings.storage.sync,
                seconds=clock.monotonic() - began,
                tls_urls=node.tls_urls,
            ),
            flush=True,
        )

    try:
        return run_standalone(settings, greet)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        # The HTTP port names itself in its own error, so this is the other one.
        raise OSError(errno.EADDRINUSE, f"{settings.network.host}:{settings.network.port} is in use") from error
