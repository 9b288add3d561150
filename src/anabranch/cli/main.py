"""The command `anabranch` and its subcommands. A subcommand is imported when it runs.

`anabranch --version` is answered before even the option parser is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from anabranch import __version__
from anabranch.cli.version import version_text

COMMANDS = {
    "standalone": (
        "anabranch.cli.serve.standalone",
        "standalone",
        "Run one broker with everything it needs in this process.",
    ),
    "broker": (
        "anabranch.cli.serve.broker",
        "broker",
        "Run one broker of a cluster: shared metadata, shared data directory.",
    ),
    "admin": (
        "anabranch.cli.admin.commands",
        "admin",
        "Administer a broker: tenants, namespaces, topics, subscriptions, …",
    ),
    "watch": ("anabranch.cli.watch", "watch", "Watch the segments of a scalable topic."),
    "storage": ("anabranch.cli.storage.commands", "storage", "Move what brokers have stored, while none runs."),
    "doctor": ("anabranch.cli.diagnose.doctor", "doctor", "Say what needs attention, and what to do about it."),
    "top": ("anabranch.cli.diagnose.top", "top", "Show the busiest topics, again and again."),
    "wait": ("anabranch.cli.diagnose.wait", "wait", "Return when a scalable topic is in a state."),
    "explain": ("anabranch.cli.diagnose.explain", "explain", "Say what an error code means."),
    "produce": ("anabranch.cli.traffic.produce", "produce", "Send messages to a topic."),
    "consume": ("anabranch.cli.traffic.consume", "consume", "Print the messages of a topic."),
    "tail": (
        "anabranch.cli.traffic.tail",
        "tail",
        "Show messages as they come, without a subscription.",
    ),
    "bench": ("anabranch.cli.traffic.bench", "bench", "Load a topic at a steady rate and tell percentiles."),
    "spark": ("anabranch.cli.spark", "spark", "Pipeline jobs on Spark: copy, audit, stats."),
    "context": ("anabranch.cli.contexts", "context", "Name connections, and choose one."),
    "config": ("anabranch.cli.config", "config", "Show settings."),
    "metadata": (
        "anabranch.cli.metadata.commands",
        "metadata",
        "Look into a metadata store, change it, carry it elsewhere.",
    ),
    "token": ("anabranch.cli.token", "token", "Make keys and tokens, and check tokens."),
    "completion": ("anabranch.cli.completion", "completion", "Print the completion script of a shell."),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code and prints failures as one clear line each."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["--version"], ["-V"]):
        print(version_text())
        return 0
    import click

    from anabranch.cli.errors import EXIT_INTERRUPTED, Interrupted, report_error
    from anabranch.cli.lazy_group import LazyGroup

    group = LazyGroup(
        "anabranch",
        COMMANDS,
        help="Elastic, key-ordered topics: brokers, traffic, administration, pipelines. Pulsar clients work unchanged.",
    )
    click.version_option(__version__, "--version", "-V", prog_name="anabranch", message="%(prog)s %(version)s")(group)
    try:
        result = group.main(given, prog_name="anabranch", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Interrupted as interrupted:
        print(f"anabranch: {interrupted}", file=sys.stderr)
        return interrupted.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except Exception as error:  # the outermost shell: known failures become one line, unknown ones travel on
        return report_error(error)
    return result if isinstance(result, int) else 0
