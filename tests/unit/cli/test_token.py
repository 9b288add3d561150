"""`anabranch token` as people type it, and that a broker without security does not load what security needs."""

from __future__ import annotations

import base64
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.cli.main import main
from anabranch.cli.param_types import seconds_of


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["token", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("as_base64", [False, True])
def test_secret_create_validate(tmp_path: Path, capsys: pytest.CaptureFixture[str], as_base64: bool) -> None:
    key = tmp_path / "secret.key"
    assert run(capsys, "create-secret-key", "--output", str(key), *(["--base64"] if as_base64 else [])) == (0, "", "")
    assert len(base64.b64decode(key.read_bytes()) if as_base64 else key.read_bytes()) == 32
    assert key.stat().st_mode & 0o077 == 0
    code, token, _ = run(capsys, "create", "--subject", "me", "--secret-key", f"file://{key}", "--expiry-time", "1h")
    assert code == 0
    code, claims, _ = run(capsys, "validate", token.strip(), "--secret-key", str(key))
    assert code == 0 and json.loads(claims)["sub"] == "me" and json.loads(claims)["exp"] > 1_700_000_000
    file = tmp_path / "token"
    file.write_text(token)
    assert run(capsys, "validate", "--token-file", str(file), "--secret-key", str(key))[0] == 0
    code, said, complaint = run(capsys, "validate", token.strip() + "x", "--secret-key", str(key))
    assert (code, said) == (1, "") and complaint.count("\n") == 1 and token.strip() not in complaint


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES512"])
def test_pair_create_validate(tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str) -> None:
    private, public = tmp_path / "private.key", tmp_path / "public.key"
    outputs = ("--output-private-key", str(private), "--output-public-key", str(public))
    assert run(capsys, "create-key-pair", *outputs, "-a", algorithm)[0] == 0
    code, token, _ = run(capsys, "create", "-s", "me", "--private-key", str(private), "-c", "team=a")
    assert code == 0
    head = json.loads(base64.urlsafe_b64decode(token.split(".")[0] + "=="))
    assert head["alg"] == algorithm
    code, claims, _ = run(capsys, "validate", token.strip(), "--public-key", str(public))
    assert (code, json.loads(claims)) == (0, {"sub": "me", "team": "a"})
    assert run(capsys, "create-key-pair", *outputs)[0] == 1  # never over another key


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", "-s", "me"],
        ["create", "-s", "me", "--secret-key", "none", "--private-key", "none"],
        ["create", "-s", "me", "--secret-key", "none"],
        ["create", "-s", "me", "--secret-key", "data:;base64,c2hvcnQ="],
        ["create", "-s", "me", "--secret-key", "none", "-e", "soon"],
        ["create", "-s", "me", "--secret-key", "none", "-c", "x"],
        ["create", "--secret-key", "none"],
        ["create-secret-key", "-a", "RS256"],
        ["validate", "x"],
        ["validate", "--secret-key", "none"],
        ["validate", "x", "--stdin", "--secret-key", "none"],
    ],
)
def test_mistakes_are_reported_without_traceback(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, said, complaint = run(capsys, *arguments)
    assert code in (1, 2) and said == "" and complaint
    assert "Traceback" not in complaint


def test_the_page_of_documentation_works(tmp_path: Path) -> None:
    """Every `anabranch token` line of docs/operations/security.md, in order, as a shell would run it."""
    page = (Path(__file__).parents[3] / "docs" / "operations" / "security.md").read_text()
    blocks = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    lines = [line for line in "".join(blocks).splitlines() if line.startswith("anabranch token")]
    assert len(lines) >= 5
    for line in lines:
        command = line.replace("anabranch", f"{shlex.quote(sys.executable)} -m anabranch", 1)
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"{line}: {done.stderr}"


def test_times() -> None:
    assert [seconds_of(text) for text in ("90", "90s", "2m", "3h", "4d", "5w", "1y", "1Y")] == [
        90, 90, 120, 10_800, 345_600, 3_024_000, 31_536_000, 31_536_000,
    ]  # fmt: skip


def test_a_broker_without_security_does_not_load_it() -> None:
    code = "import sys, anabranch.node.node; print(sorted({'jwt', 'cryptography', 'bcrypt'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"
