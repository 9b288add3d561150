"""`anabranch broker`: one broker of a cluster. The flags of `standalone`, with what must be shared made explicit."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import click

from anabranch.cli.serve.standalone import METADATA_HELP, STORAGE_HELP, common_options, flag_layer, loaded, serve


@click.command()
@click.option("--metadata", metavar="URL", required=True, help=METADATA_HELP)
@click.option("--data", metavar="DIR", help="The data directory that all brokers of the cluster share.")
@click.option("--storage", metavar="URL", help=f"{STORAGE_HELP} The brokers then share no directory.")
@click.option(
    "--id", "broker_id", metavar="NAME", help="Who this broker is, across restarts (default: host name and port)."
)
@common_options
def broker(config: Path | None, assignments: tuple[str, ...], **flags: Any) -> int:
    """Join the cluster of a metadata store and serve a share of its topics.

    All brokers of a cluster name the same metadata store and the same data directory:

    \b
      anabranch broker --metadata sqlite:////srv/topics/metadata --data /srv/topics --port 6650
      anabranch broker --metadata sqlite:////srv/topics/metadata --data /srv/topics --port 6651 --http-port 8081

    With messages on bookies they share no directory, and each can run on a machine of its own:

    \b
      anabranch broker --metadata zk://zk1:2181/anabranch --storage bookkeeper://zk1:2181/ledgers

    A broker that is stopped (SIGTERM) hands its topics over first; one that dies is replaced by the others.
    """
    if flags.get("broker_id") is None:
        port = flags.get("port")
        flags["broker_id"] = f"{socket.gethostname()}-{6650 if port is None else port}"
        if port == 0:
            raise click.UsageError("--port 0 needs --id: a broker keeps its name across restarts")
    if flags.get("data") is None and flags.get("storage") is None:
        raise click.UsageError("give --data, a directory that all brokers share, or --storage, the URL of bookies")
    settings, began = loaded(config, flag_layer(flags, ("cluster.enabled=true", *assignments)))
    return serve(settings, began)
