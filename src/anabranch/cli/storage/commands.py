"""`anabranch storage`: the group of verbs. A verb is imported when it runs."""

from __future__ import annotations

from anabranch.cli.lazy_group import LazyGroup

VERBS = {"copy": ("anabranch.cli.storage.copy", "copy", "Copy all messages from files to bookies.")}

storage = LazyGroup("storage", VERBS, help="Move what brokers have stored, while none of them runs.")
