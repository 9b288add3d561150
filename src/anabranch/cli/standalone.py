"""`anabranch standalone`: flags into settings, then hand over to `anabranch.node.standalone`.

Agreed with the node: `StandaloneSettings` is the root of the settings (see `anabranch.runtime.settings`) and has at
least the names in `FLAGS`; `run_standalone(settings) -> int` serves until it is told to stop and prints a `Greeting`
when it is ready.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from anabranch.runtime.settings import Layer, env_layer, file_layer, load

DEFAULT_DATA = "anabranch-data"
FLAGS: Mapping[str, tuple[str, ...]] = {
    "data": ("storage.dir",),
    "host": ("service.host", "http.host"),
    "port": ("service.port",),
    "http_port": ("http.port",),
    "metadata": ("metadata.url",),
    "sync": ("storage.sync",),
    "log_level": ("log.level",),
    "log_format": ("log.format",),
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
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error (default: info).")
@click.option("--log-format", metavar="FORMAT", help="text or json (default: text).")
def standalone(config: Path | None, assignments: tuple[str, ...], **flags: Any) -> int:
    """Run one broker with everything it needs in this process.

    Clients connect to pulsar://localhost:6650; HTTP (lookup, admin, metrics) is on port 8080.
    """
    from anabranch.node.standalone import StandaloneSettings, run_standalone

    layers = settings_layers(StandaloneSettings, config, os.environ, flag_layer(flags, assignments))
    return run_standalone(load(StandaloneSettings, layers))
