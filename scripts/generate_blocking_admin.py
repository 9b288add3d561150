"""Writes the blocking form of the admin calls from the asynchronous one: the same methods without `async` and `await`.

    python scripts/generate_blocking_admin.py            # writes src/anabranch/admin/blocking/*.py
    python scripts/generate_blocking_admin.py --check    # tells whether they are up to date; a test does this

One text is written by hand, so that the two forms cannot drift apart.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ADMIN = ROOT / "src" / "anabranch" / "admin"
MODULES = (
    "group",
    "tenants",
    "namespaces",
    "topics",
    "topic_policies",
    "subscriptions",
    "schemas",
    "brokers",
    "scalable",
    "metadata_migration",
    "ledgers",
)


def blocking(module: str, source: str) -> str:
    """The blocking text of an asynchronous one."""
    docstring_end = source.index('"""', 3) + 3
    head = (
        f'"""The blocking form of `anabranch.admin.{module}`. Written by scripts/generate_blocking_admin.py; edit\n'
        'that module, not this one."""'
    )
    text = head + source[docstring_end:]
    for asynchronous, plain in (
        ("async def ", "def "),
        ("await ", ""),
        ("anabranch.admin.group", "anabranch.admin.blocking.group"),
    ):
        text = text.replace(asynchronous, plain)
    return _tidy(text)


def _tidy(text: str) -> str:
    for command in (["check", "--fix-only", "--quiet"], ["format", "--quiet"]):
        ran = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", "src/anabranch/admin/blocking/x.py", "-"],
            input=text,
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
        )
        text = ran.stdout
    return text


def stale() -> list[str]:
    """Modules whose blocking form is not what it should be."""
    return [
        module
        for module in MODULES
        if not (form := ADMIN / "blocking" / f"{module}.py").exists()
        or form.read_text() != blocking(module, (ADMIN / f"{module}.py").read_text())
    ]


def main() -> int:
    if "--check" in sys.argv[1:]:
        for module in (found := stale()):
            print(f"admin/blocking/{module}.py is out of date: run scripts/generate_blocking_admin.py")
        return 1 if found else 0
    (ADMIN / "blocking").mkdir(exist_ok=True)
    for module in MODULES:
        (ADMIN / "blocking" / f"{module}.py").write_text(blocking(module, (ADMIN / f"{module}.py").read_text()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
