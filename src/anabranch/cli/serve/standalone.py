"""`anabranch standalone`: turns flags into settings and starts a node.

`FLAGS` lists the settings that have a flag; --set reaches every other one.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anabranch import __version__
from anabranch.cli.serve.ready_banner import Greeting
from anabranch.runtime.clock import SystemClock
from anabranch.runtime.logs import setup_logs
from anabranch.runtime.settings import Layer, env_layer, file_layer, load

if TYPE_CHECKING:
    from anabranch.node.settings.node import NodeSettings

DEFAULT_DATA = "anabranch-data"
FLAGS: Mapping[str, tuple[str, ...]] = {
    "data": ("storage.dir",),
    "host": ("network.host", "http.host"),
    "port": ("network.port",),
    "http_port": ("http.port",),
    "metadata": ("metadata.url",),
    "storage": ("storage.url",),
    "advertised_host": ("network.advertised_host",),
    "broker_id": ("storage.broker_id",),
    "sync": ("storage.sync",),
    "log_level": ("log.level",),
    "log_format": ("log.form",),
    "insecure": ("network.insecure", "http.insecure"),
    "tls_cert": ("tls.cert_file",),
    "tls_key": ("tls.key_file",),
    "tls_port": ("tls.port",),
    "tls_http_port": ("tls.http_port",),
    "tls_only": ("tls.only",),
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


def common_options(command: Any) -> Any:
    """What `standalone` and `broker` have in common."""
    for option in reversed(
        (
            click.option("--host", metavar="ADDRESS", help="Address to listen on (default: 127.0.0.1)."),
            click.option("--port", type=int, metavar="N", help="Port for clients (default: 6650; 0 = any free one)."),
            click.option("--http-port", type=int, metavar="N", help="Port for HTTP (default: 8080; 0 = any free one)."),
            click.option(
                "--advertised-host", metavar="HOST", help="Host name that brokers give to clients (default: --host)."
            ),
            click.option("--sync", metavar="MODE", help="group, linger:Nms or none (default: group)."),
            click.option(
                "--config",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="TOML file; see `anabranch config sample`.",
            ),
            click.option(
                "--set",
                "assignments",
                multiple=True,
                metavar="NAME=VALUE",
                help="Any setting, for example storage.sync=group.",
            ),
            click.option(
                "--insecure",
                is_flag=True,
                default=None,
                help="Allow an address beyond loopback, without authentication.",
            ),
            click.option("--tls-cert", metavar="FILE", help="PEM certificate chain: opens two ports with TLS."),
            click.option("--tls-key", metavar="FILE", help="PEM key of the certificate, without a password."),
            click.option("--tls-port", type=int, metavar="N", help="Port for clients with TLS (default: 6651)."),
            click.option("--tls-http-port", type=int, metavar="N", help="Port for HTTPS (default: 8443)."),
            click.option(
                "--tls-only",
                is_flag=True,
                default=None,
                help="Open no ports without TLS: --port and --http-port are off.",
            ),
            click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error (default: info)."),
            click.option("--log-format", metavar="FORMAT", help="text or json (default: text)."),
        )
    ):
        command = option(command)
    return command


METADATA_HELP = (
    "memory:, sqlite:///DIR, zk://H:P/CHROOT, etcd://H:P or oxia://H:P/NAMESPACE (default: SQLite under --data)."
)

STORAGE_HELP = "bookkeeper://ZOOKEEPER:PORT/ledgers: messages on bookies (default: files under --data)."


@click.command()
@click.option("--data", metavar="DIR", help=f"Where everything is kept (default: ./{DEFAULT_DATA}).")
@click.option("--metadata", metavar="URL", help=METADATA_HELP)
@click.option("--storage", metavar="URL", help=STORAGE_HELP)
@click.option(
    "--brokers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of broker processes over one data directory; a process that dies is started again.",
)
@common_options
def standalone(config: Path | None, assignments: tuple[str, ...], brokers: int, **flags: Any) -> int:
    """Run one broker with everything it needs in this process, or several as one cluster.

    Clients connect to pulsar://localhost:6650; HTTP (lookup, admin, metrics) is on port 8080. With --brokers N any
    running broker answers on these two ports, and each broker has two private ports.
    """
    settings, began = loaded(config, flag_layer(flags, assignments))
    if brokers == 1:
        return serve(settings, began)
    from anabranch.cli.serve.multi_broker import serve_many

    return serve_many(settings, brokers, config, assignments, flags, began)


def loaded(config: Path | None, flags: Layer) -> tuple[NodeSettings, float]:
    """The settings, complaints raised, logs set up; and when that began."""
    from anabranch.node.settings.node import NodeSettings

    began = SystemClock().monotonic()
    settings = load(NodeSettings, settings_layers(NodeSettings, config, os.environ, flags))
    from anabranch.node.supervisor import is_supervised

    origin = settings.storage.broker_id if is_supervised() else ""
    setup_logs(settings.log.level, "json" if settings.log.form == "json" else "text", origin=origin)
    return settings, began


def serve(settings: NodeSettings, began: float) -> int:
    """One broker in this process until a signal."""
    gc.disable()  # nothing of what is loaded now is garbage; `run_standalone` switches it on when the broker stands
    from anabranch.node.node import Node
    from anabranch.node.standalone import run_standalone
    from anabranch.node.supervisor import is_supervised, say_ready

    supervised = is_supervised()

    def print_banner(node: Node) -> None:
        if supervised:
            say_ready()  # the supervisor speaks for all
            return
        print(
            Greeting(
                version=__version__,
                service_url=node.service_url,
                http_url=node.http_url,
                data=settings.storage.dir.absolute(),
                sync=settings.storage.sync,
                storage_url=settings.storage.url,
                seconds=SystemClock().monotonic() - began,
                tls_urls=node.tls_urls,
            ),
            flush=True,
        )

    return run_standalone(settings, print_banner, is_supervised=supervised)
