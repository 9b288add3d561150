"""Writes a data directory with the code of this checkout, for later versions to open: run it at a commit worth keeping.

    python -m tests.compatibility.write_fixture NAME

`data/NAME.tar.gz` has two directories: `clean`, left by a broker that was stopped, and `killed`, the same one after
more messages, a split and `kill -9`. `data/NAME.json` says what must be found in each of them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.compatibility.scenario import Scenario
from tests.support.processes.broker_process import BrokerProcess

FOLDER = Path(__file__).parent / "data"


def write(folder: Path) -> dict[str, Any]:
    """Both directories below `folder`; what must be found in each."""
    with BrokerProcess(folder / "killed") as broker:
        scenario = Scenario(broker)
        clean = scenario.write()
        broker.stop()
        shutil.copytree(broker.data, folder / "clean")
        broker.start()
        killed = scenario.write_more()
        broker.kill9()
    return {"clean": clean, "killed": killed}


def main(name: str) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest = write(folder)
        archive = FOLDER / f"{name}.tar.gz"
        owner = ("--owner=0", "--group=0", "--numeric-owner")
        command = ["tar", "--create", "--gzip", "--sparse", "--sort=name", *owner]
        subprocess.run([*command, f"--file={archive}", f"--directory={folder}", "clean", "killed"], check=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{archive.name}: {archive.stat().st_size:,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
