"""`python -m anabranch` is the same as the command `anabranch`."""

from __future__ import annotations

import sys

from anabranch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
