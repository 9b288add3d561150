"""Runs test suites with all ledgers on bookies: `python -m tests.soak.suites_on_bookkeeper [pytest arguments]`.

Every broker process of the suites gets the storage URL through the environment; metadata stays where a suite puts it.
Without arguments it runs the suites about splits, merges, migrations of topics and of the metadata store.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.services import bookkeeper

SUITES = (
    "tests/e2e/scalable/test_failover.py",
    "tests/e2e/scalable/test_continuation.py",
    "tests/e2e/scalable/test_migration_failover.py",
    "tests/e2e/cluster/test_cluster.py",
    "tests/e2e/cluster/test_metadata_migration.py",
    "tests/e2e/sdk/test_scalable.py",
)
BOOKIES = 4


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder, bookkeeper.cluster(Path(folder), BOOKIES) as bookies:
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *(arguments or SUITES)]
        return subprocess.run(command, env={**os.environ, "ANABRANCH_STORAGE_URL": bookies.url}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
