"""Writes the snapshots that the tests of this folder compare with.

python -m tests.compatibility.record            # all
python -m tests.compatibility.record rest cli   # these
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.compatibility import public_surface, snapshot, stored_metadata

COLLECTORS = {**public_surface.COLLECTORS, "metadata": stored_metadata.collect}


def main(names: Sequence[str]) -> int:
    unknown = set(names) - COLLECTORS.keys()
    if unknown:
        sys.stderr.write(f"no such snapshot: {', '.join(sorted(unknown))}; there are {', '.join(COLLECTORS)}\n")
        return 2
    for name in names or COLLECTORS:
        entries = COLLECTORS[name]()
        snapshot.write(name, entries)
        sys.stdout.write(f"{snapshot.path_of(name).name}: {len(entries)} entries\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
