"""`anabranch metadata`: the group of verbs. A verb is imported when it runs."""

from __future__ import annotations

from anabranch.cli.lazy_group import LazyGroup

VERBS = {
    "ls": ("anabranch.cli.metadata.read", "ls", "Keys as a tree."),
    "get": ("anabranch.cli.metadata.read", "get", "The value of a key."),
    "watch": ("anabranch.cli.metadata.read", "watch", "Changes as they happen."),
    "put": ("anabranch.cli.metadata.write", "put", "Write the value of a key."),
    "rm": ("anabranch.cli.metadata.write", "rm", "Delete a key, or all below it."),
    "export": ("anabranch.cli.metadata.export_import", "export", "Write everything to a file."),
    "import": ("anabranch.cli.metadata.export_import", "import_", "Write a file's contents into a store."),
}

metadata = LazyGroup(
    "metadata",
    VERBS,
    help="""Look into a metadata store, change it, carry it to another one. No broker is needed.

    \b
    URL is what brokers have as --metadata:
      sqlite:///DIR                        the default of standalone: sqlite:///./anabranch-data/metadata
      zk://HOST:PORT[,HOST:PORT][/CHROOT]
      etcd://HOST:PORT[,HOST:PORT][/PREFIX]
      oxia://HOST:PORT[,HOST:PORT][/NAMESPACE[/PREFIX]]

    \b
    Examples:
      anabranch metadata ls sqlite:///./anabranch-data/metadata -r
      anabranch metadata get zk://localhost:2181/anabranch /namespaces/public/default
      anabranch metadata watch etcd://localhost:2379/anabranch /topics
      anabranch metadata export zk://localhost:2181/anabranch -o all.jsonl
      anabranch metadata import etcd://localhost:2379/anabranch all.jsonl --preserve

    Brokers keep their own truth here. Looking is always safe; before you put, rm or import, know what the key means.
    Every verb has --help and --json.
    """,
)
